"""A process in the background: neither the command that starts it nor a terminal ends it."""

import os
from pathlib import Path

from launcher.core.exit_codes import OK


def leave_parent() -> None:
    """Continues in a child process with its own session, and ends this process with OK."""
    if os.fork():
        os._exit(OK)
    os.setsid()


def redirect_streams(log: Path) -> None:
    """Connects standard input to nothing, and the other standard streams to the end of a file."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for source, number in ((nothing, 0), (file, 1), (file, 2)):
        os.dup2(source, number)
    os.close(nothing)
    os.close(file)
