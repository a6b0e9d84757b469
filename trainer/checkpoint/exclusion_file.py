"""The file with a run's excluded examples: read by all processes alike, written by process 0."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import jax
from etils import epath

from trainer.checkpoint.errors import FolderError
from trainer.contract.records import exclusions
from trainer.contract.records.exclusions import EXCLUDED, Exclusion, Exclusions
from trainer.contract.storage import durable_files
from trainer.contract.storage.paths import is_url
from trainer.contract.storage.retries import StorageError, retried
from trainer.distributed import consensus


def read_on_all(folder: epath.Path) -> Exclusions:
    """Returns what process 0 reads, on all processes. Every process must call it.

    Raises FolderError when the file cannot be parsed, StorageError when it cannot be read.
    """
    found, error = exclusions.NONE, None
    if jax.process_index() == 0:
        try:
            found = retried(str(folder / EXCLUDED), partial(exclusions.read, folder))
        except ValueError as problem:
            error = FolderError(str(problem))
        except Exception as problem:
            error = problem
    consensus.agree("excluded/seen", error, (FolderError, StorageError))
    return exclusions.decode(consensus.broadcast("excluded/read", exclusions.encode(found)))


def write(folder: epath.Path, excluded: Sequence[Exclusion], label: str) -> None:
    """Replaces the file atomically. Only process 0 calls it; `label` is that of its attempt."""
    text = exclusions.encode(excluded)
    if is_url(folder):
        replace = partial((folder / EXCLUDED).write_text, text)
    else:
        replace = partial(durable_files.replace, Path(folder) / EXCLUDED, text, label)
    retried(f"writing {folder / EXCLUDED}", replace)
