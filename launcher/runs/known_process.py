"""A process that another command started and recorded."""

import os
import select
import signal
from typing import Self

from launcher.host.process_tree import start_time


class KnownProcess:
    """A process held by a pidfd, which never refers to another process with a reused id."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid, self._descriptor = pid, descriptor

    @classmethod
    def find(cls, pid: int | None, started: int | None) -> Self | None:
        """Returns the process with that id and start time.

        Returns None when it has ended or is not on this machine, or when its id is reused.
        """
        if pid is None:
            return None
        try:
            descriptor = os.pidfd_open(pid)
        except OSError:
            return None
        if start_time(pid) == started:
            return cls(pid, descriptor)
        os.close(descriptor)
        return None

    def send(self, number: signal.Signals) -> None:
        """Sends a signal. Does nothing when the process has ended."""
        try:
            signal.pidfd_send_signal(self._descriptor, number)
        except ProcessLookupError:
            pass

    def ends_within(self, timeout_s: float) -> bool:
        ended, _, _ = select.select([self._descriptor], [], [], timeout_s)
        return bool(ended)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
