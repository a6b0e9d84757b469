"""The memory of this machine: all of it, and what is available to new programs."""

from pathlib import Path

UNLIMITED = 1 << 62


def available_bytes() -> int:
    """Returns the bytes available to new programs.

    This is the kernel's estimate, or what the control group's limit leaves when that is less.
    """
    limit, used = _control_group()
    return min(_meminfo_bytes("MemAvailable:"), max(0, limit - used))


def total_bytes() -> int:
    """Returns the bytes that this process's programs could have if no others were running."""
    limit, _ = _control_group()
    return min(_meminfo_bytes("MemTotal:"), limit)


def _meminfo_bytes(name: str) -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return UNLIMITED


def _control_group() -> tuple[int, int]:
    """Returns the bytes that the control group may use, and those that it uses."""
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return UNLIMITED, 0
    return UNLIMITED if limit == "max" else int(limit), used
