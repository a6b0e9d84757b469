"""References to a checkpoint of a run: `run:NAME`, `run:NAME@STEP` and `run:NAME@best`."""

from dataclasses import dataclass
from typing import Literal

PREFIX = "run:"
BEST: Literal["best"] = "best"
FORMS = "run:NAME, run:NAME@STEP or run:NAME@best"


@dataclass(frozen=True)
class CheckpointRef:
    """A checkpoint of a run, by the run's name and what distinguishes the checkpoint."""

    run: str
    """Name of the run, or path of its folder."""
    at: int | Literal["best"] | None = None
    """A step, `best` for the lowest validation loss, or None for the newest one."""

    def __str__(self) -> str:
        return f"{PREFIX}{self.run}" + ("" if self.at is None else f"@{self.at}")


def parse_checkpoint_ref(text: str) -> CheckpointRef | None:
    """Returns the reference in a text; None for a text that is not one, such as a path.

    Raises ValueError for a text that begins like a reference and is none.
    """
    if not text.startswith(PREFIX):
        return None
    run, at_sign, which = text.removeprefix(PREFIX).rpartition("@")
    if not at_sign or "/" in which:  # an @ in the path of a folder
        run, which = text.removeprefix(PREFIX), None
    if not run:
        raise ValueError(f"expected {FORMS}, found {text!r}")
    if which is None or which == BEST:
        return CheckpointRef(run, BEST if which else None)
    if not (which.isascii() and which.isdecimal()):
        raise ValueError(f"expected a step or `best` after the @, found {text!r}")
    return CheckpointRef(run, int(which))
