"""Detects whether the kernel has recently ended a process of this host for lack of memory."""

import time
from pathlib import Path

LATELY_S = 60.0
"""Seconds for which a kill is recent: a large process takes a while to end."""
POLL_INTERVAL_S = 0.2
GROUPS = Path("/sys/fs/cgroup")
GROUP_FILES = (
    ("memory.max", "memory.peak", "memory.current"),
    ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes"),
)
"""Files of a control group, versions 2 and 1: its limit, then its use, the best source first."""


class MemoryKills:
    """The kernel's own count of its out-of-memory kills, since construction.

    The count does not name the process. With a SIGKILL of unknown origin at that time, it is the
    available evidence for every kind of memory limit: the host's, a container's, a cgroup's.
    """

    def __init__(self) -> None:
        self._count = _count()
        self._polled_at, self._seen_at = time.monotonic(), float("-inf")
        self._groups: list[Path] = []
        """Control groups of the program, as last read while it lived."""
        self._used_of_host = 0

    def poll(self, program: int | None) -> None:
        """Updates the count and the memory use; called often. `program` is a process id."""
        if time.monotonic() - self._polled_at >= POLL_INTERVAL_S:
            self._count_kills()
            groups = _groups_of(program) if program else []
            # A process that has ended and is not waited for yet is in the root group (version 1).
            self._groups = max(groups, self._groups, key=len)
            used, _ = _host_memory()
            self._used_of_host = max(self._used_of_host, used)

    def lately(self) -> bool:
        """Returns whether the kernel has ended a process in the last LATELY_S seconds."""
        self._count_kills()
        return time.monotonic() - self._seen_at < LATELY_S

    def figures(self) -> str:
        """Returns the memory use of the tightest limit: a control group's, or the host's size."""
        _, total = _host_memory()
        bounds = [_limit_and_use(group) for group in self._groups]
        limit, used = min(bounds, default=(total, 0))
        if limit < total:
            return f"{_gib(used)} of {_gib(limit)} in its control group"
        return f"{_gib(self._used_of_host)} of {_gib(total)} on the host"

    def _count_kills(self) -> None:
        now, count = time.monotonic(), _count()
        if count > self._count:
            self._seen_at = now
        self._count, self._polled_at = count, now


def _count() -> int:
    return _numbers(Path("/proc/vmstat")).get("oom_kill", 0)


def _host_memory() -> tuple[int, int]:
    """Returns the used and the total memory of the host, in bytes."""
    numbers = _numbers(Path("/proc/meminfo"))
    total, available = numbers.get("MemTotal:", 0), numbers.get("MemAvailable:", 0)
    return (total - available) << 10, total << 10


def _numbers(path: Path) -> dict[str, int]:
    try:
        return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines()}
    except OSError:
        return {}


def _groups_of(process: int) -> list[Path]:
    """Returns the folders of a process's memory control group and of the enclosing groups."""
    try:
        lines = Path(f"/proc/{process}/cgroup").read_text().splitlines()
    except OSError:
        return []  # it has just ended
    found: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            group = GROUPS / controllers / path.lstrip("/")
            found += [folder for folder in (group, *group.parents) if folder.is_relative_to(GROUPS)]
    return found


def _limit_and_use(group: Path) -> tuple[float, float]:
    """Returns a control group's limit and use in bytes; the limit is infinity when it has none."""
    for limit, *uses in GROUP_FILES:
        if bound := _number(group / limit):
            return bound, next(filter(None, (_number(group / use) for use in uses)), 0)
    return float("inf"), 0


def _number(path: Path) -> int:
    try:
        text = path.read_text().strip()
    except OSError:
        return 0
    return int(text) if text.isdecimal() else 0


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.2f} GiB"
