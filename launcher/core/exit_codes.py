"""The exit codes of `launch`, and the function that prints the error behind one."""

import sys

from launcher.core.errors import SlipwayError
from launcher.core.output import unfailing_output
from launcher.core.printable import plain

OK, JOB_FAILED, BAD_USAGE, NO_CLUSTER, INTERRUPTED = 0, 1, 2, 3, 130


@unfailing_output()
def print_error(error: SlipwayError) -> int:
    """Prints an error with its details and hint on standard error; returns its exit code."""
    from rich.console import Console
    from rich.text import Text

    errors = Console(file=sys.stderr)
    for line in error.details:
        errors.print(Text(plain(f"  {line}"), style="dim"), soft_wrap=True)
    errors.print(Text(plain(str(error)), style="bold red"), soft_wrap=True)
    if error.hint:
        errors.print(Text(plain(error.hint)), soft_wrap=True)
    return error.exit_code
