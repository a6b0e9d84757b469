"""The base of all errors that end a command of Slipway, and its kinds."""


class SlipwayError(Exception):
    """An error with a message for the user, the exit code of `launch`, and an optional hint.

    A command prints both and ends with the exit code. See `launcher.core.exit_codes`.
    """

    exit_code = 1
    hint: str | None = None
    """The next action, as a sentence; None when the message says it."""

    def __init__(self, *args: object, hint: str | None = None) -> None:
        super().__init__(*args)
        self.hint = hint


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
