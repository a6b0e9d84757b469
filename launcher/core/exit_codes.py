"""The exit codes of `launch`, and the function that prints the reason for one."""

from typing import TYPE_CHECKING

from launcher.core.printable import plain

if TYPE_CHECKING:
    from rich.console import Console

OK, JOB_FAILED, BAD_USAGE, NO_CLUSTER, INTERRUPTED = 0, 1, 2, 3, 130


def fail(errors: "Console", message: str, code: int) -> int:
    """Prints the message and returns the code."""
    errors.print(plain(message), style="bold red", soft_wrap=True, markup=False, highlight=False)
    return code
