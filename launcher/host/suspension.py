"""Notices that a process has been stopped, as by SIGSTOP: the kernel no longer runs it."""

from pathlib import Path

SUSPENDED_S = 3.0
"""Seconds after which a stop counts; a debugger that attaches causes none."""
POLL_INTERVAL_S = 0.5
STOPPED = b"T"
"""The state of a stopped process in /proc/PID/stat; "t" is one that a debugger holds."""


class Suspension:
    """Watches one process. Times are monotonic seconds."""

    def __init__(self) -> None:
        self._since_s: float | None = None
        self._next_poll_s = 0.0
        self._is_reported = False

    def begins(self, pid: int, now_s: float) -> bool:
        """Returns True once when the process has been stopped for SUSPENDED_S."""
        if now_s < self._next_poll_s:
            return False
        self._next_poll_s = now_s + POLL_INTERVAL_S
        if not _is_stopped(pid):
            self._since_s, self._is_reported = None, False
            return False
        self._since_s = now_s if self._since_s is None else self._since_s
        begins = not self._is_reported and now_s - self._since_s >= SUSPENDED_S
        self._is_reported |= begins
        return begins


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return False
    return stat.rpartition(b")")[2].split()[0] == STOPPED
