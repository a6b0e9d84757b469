"""The driving process's side of `launcher/notify/watcher_program.py`."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from launcher.core.environment import child_environment
from launcher.notify.watcher_program import DONE

PROGRAM = Path(__file__).with_name("watcher_program.py")


class Watcher:
    """A process that notifies the loss of a run when this process is killed."""

    def __init__(self, folder: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(PROGRAM), str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=child_environment(),
            start_new_session=True,
        )

    def close(self) -> None:
        """Ends the process: the run has ended in order."""
        with suppress(OSError):  # it was killed itself
            self._process.communicate(DONE)

    def report(self) -> None:
        """Lets the process notify the loss once this process has ended."""
        assert self._process.stdin
        self._process.stdin.close()
