"""The memory available to new programs."""

from pathlib import Path


def available_bytes() -> int:
    """Returns the bytes available to new programs.

    This is the kernel's estimate, or what the control group's limit leaves when that is less.
    """
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return min(int(line.split()[1]) * 1024, _control_group_bytes())
    return _control_group_bytes()


def _control_group_bytes() -> int:
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
        used = int(Path("/sys/fs/cgroup/memory.current").read_text())
    except (OSError, ValueError):
        return 1 << 62
    return 1 << 62 if limit == "max" else max(0, int(limit) - used)
