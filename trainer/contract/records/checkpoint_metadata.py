"""What lies in a folder of checkpoints, read without loading an array: steps, and what they say.

    CHECKPOINTS/400/           a committed step: Orbax's files, and about.json beside them, and
                               tokenizer.json where that was trained
    CHECKPOINTS/400.damaged/   one that was found to be damaged and moved aside
    CHECKPOINTS/lease.json     which attempt of which run may write here

Folders are `pathlib.Path` or `etils.epath.Path`: `gs://...` works where a host can reach it. There
a step's arrays are in a folder of it that no other attempt or save writes into (400/LABEL/), and
about.json is the last of its objects: without it there is no checkpoint.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.contract.config.base import Section
from trainer.contract.config.job import Checkpoint as Policy
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import World
from trainer.contract.storage.paths import AnyPath, is_url

ABOUT = "about.json"
TOKENIZER = "tokenizer.json"
"""In a step folder of a run whose tokenizer was trained."""
DAMAGED, PROBLEM = ".damaged", "problem.txt"
"""The end of a folder's name that was moved aside, and the file in it that says why."""


class Array(Section):
    """One leaf of the saved state."""

    shape: tuple[int, ...]
    dtype: str
    digest: int
    """Modulo 2^32, the same on every mesh: see trainer/checkpoint/tree.py."""


class Base(Section):
    """The model that adapters are beside; a checkpoint of them does not hold it."""

    source: str
    """A step folder or a Hugging Face folder: a whole path, or a URL."""
    step: int | None
    """Of a step folder."""
    digests: dict[str, int]
    """Of each of its parameters in float32: another base is noticed."""


class CheckpointMetadata(Section):
    """What a checkpoint says of itself."""

    step: int
    examples: int
    """Examples trained on: the number of the next one. The whole data position."""
    time: float
    """When the save began, in seconds since the epoch."""
    run_id: str
    attempt: int
    loss: float
    eval_loss: float | None
    """Of an evaluation after this very step."""
    job: dict[str, Any]
    """As resolved."""
    corpus_sha256: str
    world: World
    mesh: dict[str, int]
    versions: dict[str, str]
    arrays: dict[str, Array]
    files: dict[str, int]
    """Path in the folder -> bytes."""
    data: str = ""
    """The folder in the step folder that has the arrays; "": the step folder itself."""
    base: Base | None = None
    """None: its weights are a model's, not adapters."""

    @property
    def bytes(self) -> int:
        return sum(self.files.values())


class BrokenError(ValueError):
    """A step folder is no whole checkpoint; says what is wrong with it."""


@dataclass(frozen=True)
class Score:
    """What decides whether a checkpoint is kept."""

    step: int
    eval_loss: float | None


def folder_of(job: Job, run_dir: Path) -> str:
    """Where a run's checkpoints are: a path (`~` is the home of whoever opens it) or a URL."""
    if job.storage is None:
        return str(run_dir / "checkpoints")
    return f"{job.storage.rstrip('/')}/{job.name}/checkpoints"


def steps(folder: AnyPath) -> list[int]:
    """Committed steps, newest first; whether they are whole is `read`'s to say."""
    try:
        names = [path.name for path in folder.iterdir() if is_committed(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((int(name) for name in names), reverse=True)


def is_committed(path: AnyPath) -> bool:
    """Whether it is a step folder, and its save came to its end."""
    # In a file system the name itself is the commit: without about.json it has been damaged.
    return path.name.isdecimal() and (not is_url(path) or (path / ABOUT).exists())


def sizes(folder: AnyPath) -> dict[str, int]:
    """Path inside the folder -> bytes, of every file in it."""
    if not is_url(folder):
        return dict(sorted(_sizes(str(folder), "")))
    import fsspec

    # One request for a thousand objects; a stat would be one for each.
    store, root = fsspec.url_to_fs(str(folder))
    found = store.find(root, detail=True)
    return {name.removeprefix(f"{root}/"): info["size"] for name, info in sorted(found.items())}


def _sizes(root: str, below: str) -> Iterator[tuple[str, int]]:
    """Not by rglob, which takes a folder that cannot be read for an empty one."""
    with os.scandir(f"{root}/{below}") as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_dir():
                yield from _sizes(root, f"{name}/")
            else:
                yield name, entry.stat().st_size


def read(folder: AnyPath) -> CheckpointMetadata:
    """A step folder's about.json, with every file there in its full length.

    Raises BrokenError with the file and what is wrong with it.
    """
    about = read_about(folder)
    try:
        found = sizes(folder)
    except (FileNotFoundError, NotADirectoryError) as error:  # somebody is deleting it
        raise BrokenError(f"{error.filename or folder} is missing") from None
    for name, size in about.files.items():
        if name not in found:
            raise BrokenError(f"{name} is missing")
        if found[name] != size:
            raise BrokenError(f"{name} has {found[name]:,} bytes of {size:,}")
    return about


def read_about(folder: AnyPath) -> CheckpointMetadata:
    """What a step folder says of itself, without a look at its files. Raises BrokenError."""
    try:
        return CheckpointMetadata.model_validate_json((folder / ABOUT).read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise BrokenError(f"{ABOUT} is missing") from None
    except ValueError as error:
        raise BrokenError(f"{ABOUT} cannot be read: {str(error).splitlines()[0]}") from None


def trained_tokenizer(folder: AnyPath) -> str:
    """The file of the tokenizer that was trained for a step folder's run; "": there is none."""
    file = folder / read_about(folder).data / TOKENIZER
    return file.read_text(encoding="utf-8") if file.exists() else ""


def expired(scores: Iterable[Score], policy: Policy) -> list[int]:
    """Steps that may go: not among the newest, not one of every k-th, not among the best."""
    newest_first = sorted(scores, key=lambda score: score.step, reverse=True)
    kept = {score.step for score in newest_first[: policy.keep]}
    if policy.keep_every_steps:
        kept |= {s.step for s in newest_first if s.step % policy.keep_every_steps == 0}
    rated = [(s.eval_loss, -s.step) for s in newest_first if s.eval_loss is not None]
    kept |= {-step for _, step in sorted(rated)[: policy.keep_best]}
    return [score.step for score in newest_first if score.step not in kept]
