"""The checkpoints of a run, read without JAX: complete, damaged, or moved aside."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from launcher.core.errors import UnreachableError
from trainer.contract.config.loader import ConfigError
from trainer.contract.records.checkpoint_metadata import (
    DAMAGED,
    BrokenError,
    CheckpointMetadata,
    FormatError,
    read,
    steps,
)
from trainer.contract.storage.paths import AnyPath, is_url
from trainer.contract.storage.retries import retried


@dataclass(frozen=True)
class Entry:
    """One step folder and its known state."""

    folder: AnyPath
    step: int
    about: CheckpointMetadata | None
    problem: str = ""
    """Why the run cannot resume from it; "" when no problem is known."""
    verified: bool = False
    """Whether every array was read and matches its digest."""

    @property
    def is_aside(self) -> bool:
        """Whether it was moved aside as damaged."""
        return DAMAGED in self.folder.name

    @property
    def state(self) -> str:
        return self.problem or ("verified" if self.verified else "whole")


def newest(folder: str) -> CheckpointMetadata | None:
    """Returns the newest complete checkpoint in a folder, or None. Raises UnreachableError."""
    return next((entry.about for entry in entries(folder) if not entry.problem), None)


def entries(folder: str) -> Iterator[Entry]:
    """Yields all step folders, newest first, damaged ones included. Raises UnreachableError."""
    try:
        root = _open(folder)
        names = retried(folder, lambda: [p.name for p in root.iterdir()] if root.is_dir() else [])
        moved = [name for name in names if DAMAGED in name and name.partition(".")[0].isdecimal()]
        found = [(step, str(step)) for step in retried(folder, lambda: steps(root))]
        found += [(int(name.partition(".")[0]), name) for name in moved]
        for step, name in sorted(found, reverse=True):
            yield retried(str(root / name), partial(_entry, root / name, step))
    except Exception as error:  # each kind of storage has its own exceptions
        why = str(error) if isinstance(error, ConfigError) else f"{type(error).__name__}: {error}"
        raise UnreachableError(f"{folder} cannot be read from here: {why}") from error


def _open(folder: str) -> AnyPath:
    """Opens a folder. Only URLs need etils, so it is imported for them alone."""
    if not is_url(folder):
        return Path(folder).expanduser()
    from trainer.contract.storage.paths import to_path

    return to_path(folder)


def _entry(folder: AnyPath, step: int) -> Entry:
    moved = "moved aside as damaged"
    try:
        about = read(folder)
    except (BrokenError, FormatError) as error:
        text = f"{moved}: {error}" if DAMAGED in folder.name else str(error)
        return Entry(folder, step, None, text)
    return Entry(folder, step, about, moved if DAMAGED in folder.name else "")
