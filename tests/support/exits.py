"""The exit code and the message of a command, without a process for it."""

from collections.abc import Callable

from launcher.core.errors import SlipwayError
from launcher.core.exit_codes import OK, print_error


def exit_code(call: Callable[[], object]) -> int:
    """Returns the exit code of a command that is a function; prints its error as `launch` does."""
    try:
        call()
    except SlipwayError as error:
        return print_error(error)
    return OK
