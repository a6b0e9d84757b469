"""What commands in a marked environment leave behind: processes, folders, namespaces."""

import os
import secrets
import shutil
import signal
import subprocess
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Self

from tests.support.processes import wait_until

MARK = "LEFTOVER_MARK"


class Traces:
    """Everything that commands started with `environment` leave on this machine.

    As a context manager, it ends what a failed test has left.
    """

    def __init__(self) -> None:
        # Short: Ray's sockets lie deep below it, and a socket's path is short.
        self.temporary = Path(tempfile.mkdtemp(prefix="sl-", dir="/tmp"))
        self.mark = f"{MARK}={secrets.token_hex(8)}"
        self.started: list[subprocess.Popen[bytes]] = []
        """Children of this process, which are waited for at the end."""
        self._namespaces: set[str] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def environment(self) -> dict[str, str]:
        name, _, value = self.mark.partition("=")
        return {**os.environ, name: value, "TMPDIR": str(self.temporary)}

    def processes(self) -> dict[int, str]:
        """Process id -> command, of every process that inherited the mark and is no zombie."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and self.mark.encode() in _environ(entry):
                    command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                    found[int(entry.name)] = command
            except OSError:
                continue
        return found

    def watch_namespaces(self) -> None:
        """From now on none may be left: those of others may not come or go meanwhile."""
        self._namespaces = network_namespaces()

    def assert_nothing_left(self, timeout_s: float = 30.0) -> None:
        try:
            wait_until(lambda: not self.processes() and not self.folders(), timeout_s)
        except TimeoutError:
            raise AssertionError(f"left: {self.processes()} {self.folders()}") from None
        if self._namespaces is not None:
            assert network_namespaces() <= self._namespaces

    def folders(self) -> list[str]:
        return [path.name for path in self.temporary.iterdir()]

    def close(self) -> None:
        """Ends what is left, and removes the folder."""
        wait_until(self._kill_all)
        for process in self.started:
            process.wait()
        shutil.rmtree(self.temporary, ignore_errors=True)

    def _kill_all(self) -> bool:
        """Returns whether nothing was left; others may start while these are killed."""
        for process in (left := self.processes()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not left


def network_namespaces() -> set[str]:
    if shutil.which("ip") is None:
        return set()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True).stdout
    return {line.split()[0] for line in listed.splitlines() if line.startswith("slw")}


def _environ(process: Path) -> list[bytes]:
    return (process / "environ").read_bytes().split(b"\0")
