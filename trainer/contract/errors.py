"""The base of all errors that end a command of Slipway, and its kinds."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Place:
    """The place of a value: in a file, or in an override."""

    file: str | None = None
    """The file, as the user named it; None for an override, and when no file is wrong."""
    line: int | None = None
    """Line of the file, from 1; None when no line has the key."""
    override: str | None = None
    """The argument `key=value` of the command line; None for a value of a file."""

    def __str__(self) -> str:
        """Returns the place as "job.yaml:7" or "override steps=20"; "" when it is not known."""
        if self.override is not None:
            return f"override {self.override}"
        return f"{self.file or ''}{'' if self.line is None else f':{self.line}'}"


@dataclass(frozen=True, kw_only=True)
class Problem(Place):
    """A problem of a file, an override or a setting."""

    message: str
    """The problem as text, without its place and key."""
    key: str | None = None
    """Dotted path of the key; None when no key is wrong."""
    found: str | None = None
    """The value that was found, as text; None when there is none."""
    expected: str | None = None
    """The values that are valid, as text; None when the message alone describes them."""

    def __str__(self) -> str:
        """Returns the line to print, such as "job.yaml:7: steps: expected ..., found ..."."""
        is_named = self.override is not None and self.override.startswith(f"{self.key}=")
        parts = super().__str__(), None if is_named else self.key, self.message
        return ": ".join(filter(None, parts))


class SlipwayError(Exception):
    """An error with a message for the user, the exit code of `launch`, and an optional hint.

    A command prints all of it and ends with the exit code. See `launcher.core.exit_codes`.
    """

    exit_code = 1
    hint: str | None = None
    """The next action, as a sentence; None when the message names it."""
    problems: Sequence[Problem] = ()
    """What is wrong in files and arguments; the message has a line for each."""
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
