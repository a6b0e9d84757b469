"""Whether the kernel has lately ended a process of this host for want of memory."""

import time
from pathlib import Path

LATELY_S = 60.0
"""A large process takes a while to go."""
LOOK_S = 1.0


class MemoryKills:
    """The kernel's own count of them, since the construction.

    It does not say whom it was: with a SIGKILL of unknown origin at that time, it is the evidence
    that there is for every kind of memory limit (the host's, a container's, a cgroup's).
    """

    def __init__(self) -> None:
        self._count = _count()
        self._looked_at, self._seen_at = time.monotonic(), float("-inf")

    def look(self) -> None:
        """To be called often."""
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._look()

    def lately(self) -> bool:
        self._look()
        return time.monotonic() - self._seen_at < LATELY_S

    def _look(self) -> None:
        now, count = time.monotonic(), _count()
        if count > self._count:
            self._seen_at = now
        self._count, self._looked_at = count, now


def _count() -> int:
    try:
        lines = Path("/proc/vmstat").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)
