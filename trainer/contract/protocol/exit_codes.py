"""Exit codes of a program under the launcher. Those of `launch` are in launcher.core.exit_codes.

64, 65 and 75 are EX_USAGE, EX_DATAERR and EX_TEMPFAIL of sysexits.h. 127 and 130, which is 128 and
the number of SIGINT, are those of a shell.
"""

from enum import IntEnum


class ProgramExit(IntEnum):
    """Exit code of a program. A code that is not listed here is a failure, which is retried."""

    FINISHED = 0
    FAILED = 1
    BAD_CONFIGURATION = 64
    """The job is wrong for this program. A retry would fail in the same way."""
    BAD_DATA = 65
    """The data is unusable, or a number is not finite. A retry would fail, too."""
    STOPPED = 75
    """Stopped on request, with everything saved: the run can be resumed."""
    NOT_STARTED = 127
    """A shell returns it for a program that it does not find."""
    INTERRUPTED = 130
    """Interrupted by Ctrl-C."""


FINAL = (ProgramExit.BAD_CONFIGURATION, ProgramExit.BAD_DATA)
"""Failures that a retry would repeat."""
