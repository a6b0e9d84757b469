"""The share of the time in which this process is busy."""

import time
from pathlib import Path

MAIN_THREAD = Path("/proc/self/stat")
IN_DISK_WAIT = "D"
"""The kernel's state of a thread that waits for a disk or a network file system (proc(5))."""


class BusyShare:
    """The share since the last call; a new one counts from its creation."""

    def __init__(self) -> None:
        self._now_s, self._used_s = time.monotonic(), time.process_time()

    def take(self) -> float:
        """Returns the processor time of all threads per second, and at least 1 in a disk wait."""
        before_s, used_before_s = self._now_s, self._used_s
        self._now_s, self._used_s = time.monotonic(), time.process_time()
        share = (self._used_s - used_before_s) / max(1e-9, self._now_s - before_s)
        return max(1.0, share) if _is_in_disk_wait() else share


def _is_in_disk_wait() -> bool:
    """Returns whether the main thread waits for a disk."""
    # The name, in parentheses, may contain any character.
    return MAIN_THREAD.read_text().rpartition(") ")[2].startswith(IN_DISK_WAIT)
