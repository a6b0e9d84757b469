"""The base of all errors that end a command of Slipway, and its kinds."""

from collections.abc import Sequence
from pathlib import Path


class SlipwayError(Exception):
    """An error with a message for the user, the exit code of `launch`, and an optional hint.

    A command prints all of it and ends with the exit code. See `launcher.core.exit_codes`.
    """

    exit_code = 1
    hint: str | None = None
    """The next action, as a sentence; None when the message names it."""
    details: Sequence[str] = ()
    """Lines to print before the message, such as the last output of a host that failed."""
    run_dir: Path | None = None
    """Directory of the run that ended with this error; None when no run had begun."""

    def __init__(
        self,
        *args: object,
        hint: str | None = None,
        details: Sequence[str] = (),
        run_dir: Path | None = None,
    ) -> None:
        super().__init__(*args)
        self.hint, self.details, self.run_dir = hint, details, run_dir


class JobError(SlipwayError):
    """Raised when the user's program fails or does not fit on its devices."""


class UsageError(SlipwayError):
    """Raised for invalid arguments, files and settings, and for commands a run does not allow."""

    exit_code = 2


class HostError(SlipwayError):
    """Raised when hosts or services cannot be reached, are refused, or are lost."""

    exit_code = 3


class InternalError(SlipwayError):
    """Raised when a helper process of Slipway fails."""
