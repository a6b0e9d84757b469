"""A command in the foreground of a terminal, which can be typed at and closed."""

import os
import pty
import select
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

READ_BYTES, POLL_INTERVAL_S = 1 << 16, 0.1


class Terminal:
    """What the command prints is read all the time, as a real terminal does."""

    def __init__(
        self, command: Sequence[str], folder: Path, environment: Mapping[str, str]
    ) -> None:
        self._printed = bytearray()
        self._master, terminal = pty.openpty()
        self.process = subprocess.Popen(
            ["setsid", "--ctty", "--wait", *command],
            cwd=folder,
            env=environment,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        self._is_closing = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def output(self) -> str:
        """Everything that was printed so far."""
        return self._printed.decode(errors="replace")

    def type(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def close(self) -> None:
        """The kernel sends SIGHUP to the command."""
        self._is_closing.set()
        self._reader.join()
        os.close(self._master)

    def _read(self) -> None:
        while not self._is_closing.is_set():
            if not select.select([self._master], [], [], POLL_INTERVAL_S)[0]:
                continue
            try:
                self._printed += os.read(self._master, READ_BYTES)
            except OSError:
                return  # the command has ended, and with it the other side
