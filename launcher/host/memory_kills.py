"""Whether the kernel has lately ended a process of this host for want of memory."""

import time
from pathlib import Path

LATELY_S = 60.0
"""A large process takes a while to go."""
LOOK_S = 0.2
GROUPS = Path("/sys/fs/cgroup")
GROUP_FILES = (
    ("memory.max", "memory.peak", "memory.current"),
    ("memory.limit_in_bytes", "memory.max_usage_in_bytes", "memory.usage_in_bytes"),
)
"""The files of a control group, version 2 and 1: its limit, then its use, the best source first."""


class MemoryKills:
    """The kernel's own count of them, since the construction.

    It does not say whom it was: with a SIGKILL of unknown origin at that time, it is the evidence
    that there is for every kind of memory limit (the host's, a container's, a cgroup's).
    """

    def __init__(self) -> None:
        self._count = _count()
        self._looked_at, self._seen_at = time.monotonic(), float("-inf")
        self._groups: list[Path] = []
        """The control groups of the program, as long as it lived."""
        self._used_of_host = 0

    def look(self, program: int | None) -> None:
        """Called often; `program` is its process id."""
        if time.monotonic() - self._looked_at >= LOOK_S:
            self._look()
            self._groups = (program and _groups_of(program)) or self._groups
            used, _ = _host_memory()
            self._used_of_host = max(self._used_of_host, used)

    def lately(self) -> bool:
        self._look()
        return time.monotonic() - self._seen_at < LATELY_S

    def figures(self) -> str:
        """How much memory was used of the tightest limit: a control group's, or the host's size."""
        _, total = _host_memory()
        bounds = [_limit_and_use(group) for group in self._groups]
        limit, used = min(bounds, default=(total, 0))
        if limit < total:
            return f"{_gib(used)} of {_gib(limit)} in its control group"
        return f"{_gib(self._used_of_host)} of {_gib(total)} on the host"

    def _look(self) -> None:
        now, count = time.monotonic(), _count()
        if count > self._count:
            self._seen_at = now
        self._count, self._looked_at = count, now


def _count() -> int:
    return _numbers(Path("/proc/vmstat")).get("oom_kill", 0)


def _host_memory() -> tuple[int, int]:
    """What is used of it, and all of it, in bytes."""
    numbers = _numbers(Path("/proc/meminfo"))
    total, available = numbers.get("MemTotal:", 0), numbers.get("MemAvailable:", 0)
    return (total - available) << 10, total << 10


def _numbers(path: Path) -> dict[str, int]:
    try:
        return {line.split()[0]: int(line.split()[1]) for line in path.read_text().splitlines()}
    except OSError:
        return {}


def _groups_of(process: int) -> list[Path]:
    """The folders of its memory control group and of those around it."""
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
    """In bytes; without a limit infinity."""
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
