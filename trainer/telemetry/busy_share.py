"""The share of the time in which this process is busy."""

import threading
import time
from pathlib import Path

MAIN_THREAD = Path("/proc/self/stat")
THREADS = Path("/proc/self/task")
IN_DISK_WAIT = "D"
"""The kernel's state of a thread that waits for a disk or a network file system (proc(5))."""


class BusyShare:
    """The share since the last call; a new one counts from its creation."""

    def __init__(self) -> None:
        self._now_s, self._used_s = time.monotonic(), time.process_time()
        self._delays_s = _run_delays_s()

    def take(self) -> float:
        """Returns the processor time of all threads per second.

        A thread that is ready but gets no processor counts as busy, too: a full machine or a
        cgroup's quota holds it back. In a disk wait, the share is at least 1.
        """
        before_s, used_before_s, delays_before_s = self._now_s, self._used_s, self._delays_s
        self._now_s, self._used_s = time.monotonic(), time.process_time()
        self._delays_s = _run_delays_s()
        delays_s = (
            delay_s - delays_before_s.get(thread, 0.0) for thread, delay_s in self._delays_s.items()
        )
        busy_s = self._used_s - used_before_s + max(delays_s, default=0.0)
        share = busy_s / max(1e-9, self._now_s - before_s)
        return max(1.0, share) if _is_in_disk_wait() else share


def _run_delays_s() -> dict[str, float]:
    """Returns how long each other thread has been ready without a processor, by its id.

    The second number of `schedstat`, in nanoseconds (Documentation/scheduler/sched-stats.rst of
    Linux). The calling thread is left out: its wake-ups would make an idle process busy.
    """
    delays_s = {}
    for thread in THREADS.iterdir():
        if thread.name == str(threading.get_native_id()):
            continue
        try:
            schedstat = (thread / "schedstat").read_text()
        except OSError:  # It has ended, or the kernel keeps no such statistics.
            continue
        delays_s[thread.name] = int(schedstat.split()[1]) / 1e9
    return delays_s


def _is_in_disk_wait() -> bool:
    """Returns whether the main thread waits for a disk."""
    # The name, in parentheses, may contain any character.
    return MAIN_THREAD.read_text().rpartition(") ")[2].startswith(IN_DISK_WAIT)
