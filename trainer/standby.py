"""A process that is ready before its attempt starts: it has imported everything and waits."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

from trainer.contract.protocol import start
from trainer.contract.protocol.environment import START_FD

OPTIONS = ("--check", "--standby")
COMMAND_NAME = Path("/proc/self/comm")


def wait_for_start(fd: int, code: Callable[[], str]) -> bool:
    """Imports the trainer and waits on the pipe `fd`; returns whether the start came.

    The start changes this process's environment. `code` returns the hash of the code on disk: if
    that has changed since the imports, the process replaces itself by one with the new code.
    While it waits, the kernel knows the process as "standby"; see `name_process`.
    """
    imported = code()
    import trainer.train  # noqa: F401

    name_process("standby")
    with os.fdopen(fd, "rb") as pipe:
        line = pipe.readline()
    if not line:
        return False
    start.apply(line, os.environ)
    del os.environ[START_FD]
    if code() != imported:
        words = [word for word in sys.orig_argv[1:] if word not in OPTIONS]
        os.execv(sys.executable, [sys.executable, *words])
    return True


def name_process(name: str) -> None:
    """Sets the name that `ps` and `pgrep` show; does nothing where that is not possible."""
    try:
        COMMAND_NAME.write_text(name)
    except OSError:
        pass
