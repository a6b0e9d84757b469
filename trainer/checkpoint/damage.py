"""Decides which read errors prove that a checkpoint is damaged: its content is not as saved."""

import os
import re
from json import JSONDecodeError
from pathlib import Path

from etils import epath

from trainer.checkpoint.errors import RestoreError
from trainer.contract.records.checkpoint_metadata import PROBLEM, BrokenError, FormatError
from trainer.contract.storage.paths import is_url
from trainer.contract.storage.retries import StorageError, chain, is_memory, is_transient, reason

PROOF = re.compile(
    r"^(DATA_LOSS|NOT_FOUND): |^Error opening .*: Error (reading|decoding) ", re.DOTALL
)
"""tensorstore's messages about missing or changed data; INVALID_ARGUMENT has no status name."""


def judged(what: str, error: Exception) -> Exception:
    """Returns a read error as BrokenError (proof of damage), StorageError or RestoreError.

    A FormatError is returned unchanged.
    """
    if isinstance(error, (BrokenError, FormatError, StorageError)):
        return error
    if is_transient(error):
        return StorageError(f"{what}: {reason(error)}")
    if is_memory(error):
        return RestoreError(
            f"{what} does not fit in memory: {reason(error)}. "
            "Nothing was moved. Use more or larger devices, or another mesh"
        )
    if any(_is_proof(one) for one in chain(error)):
        return BrokenError(reason(error))
    return RestoreError(
        f"{what} cannot be read: {type(error).__name__}: {reason(error)}. "
        "This does not prove damage, so nothing was moved"
    )


def forget_cached(folder: epath.Path) -> None:
    """Drops cached pages, so that the next read comes from storage if this host's kernel allows."""
    if is_url(folder) or not hasattr(os, "posix_fadvise"):
        return
    for parent, _, names in os.walk(folder):
        for name in names:
            descriptor = os.open(Path(parent, name), os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def move_aside(source: epath.Path, suffix: str, problem: str) -> epath.Path:
    """Renames a step folder, which then counts no longer, and writes why; returns the new one."""
    number, target = 1, source.with_name(f"{source.name}{suffix}")
    while target.exists():
        number += 1
        target = source.with_name(f"{source.name}{suffix}.{number}")
    source.rename(target)
    (target / PROBLEM).write_text(problem)
    return target


def _is_proof(error: BaseException) -> bool:
    if isinstance(error, (BrokenError, JSONDecodeError, UnicodeDecodeError)):
        return True
    return isinstance(error, ValueError) and PROOF.search(str(error)) is not None
