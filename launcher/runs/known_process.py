"""A process that another command started, as that one wrote it down."""

import os
import select
import signal
from typing import Self

from launcher.host.process_tree import start_time


class KnownProcess:
    """Held by a descriptor, which never means another process that got its id."""

    def __init__(self, pid: int, descriptor: int) -> None:
        self.pid, self._descriptor = pid, descriptor

    @classmethod
    def find(cls, pid: object, started: object) -> Self | None:
        """By its id and its start time; None: it is gone, or none of this machine or of ours."""
        if not isinstance(pid, int):
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
        """Nothing, where it has ended."""
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
