"""Commands of the launcher as processes, and what tests wait for and look for in their files."""

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

POLL_INTERVAL_S, LONGEST_INTERVAL_S = 0.02, 0.1
LAUNCH_TIMEOUT_S = 480.0
"""Longer than all deadlines of a start together, so that a test shows what the launcher says."""


def wait_until(condition: Callable[[], object], timeout_s: float = 120.0) -> None:
    """Wait for a condition, or fail with a clear error at the deadline.

    A condition may take long, as one that reads all processes: what is waited for needs the cores.
    """
    began = time.monotonic()
    deadline = began + timeout_s
    while not condition():
        ended = time.monotonic()
        if ended > deadline:
            raise TimeoutError(f"{condition} did not hold within {timeout_s:.0f} s")
        time.sleep(min(max(POLL_INTERVAL_S, 4 * (ended - began)), LONGEST_INTERVAL_S))
        began = time.monotonic()


def written(*folders: Path) -> list[Path]:
    """Files in them, environments left out."""
    found = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    return [path for path in found if "environments" not in path.parts]


def holds(path: Path, text: str) -> bool:
    """False for what has gone meanwhile."""
    try:
        return text.encode() in path.read_bytes()
    except OSError:
        return False


def run_launcher(
    folder: Path, environment: Mapping[str, str], *words: str
) -> subprocess.CompletedProcess[str]:
    """`launch` with these words, in a folder; fails with what it printed where it does not end."""
    command = [sys.executable, "-m", "launcher", *words]
    try:
        return subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=LAUNCH_TIMEOUT_S,
        )
    except subprocess.TimeoutExpired as error:
        printed = b"".join(part for part in (error.stdout, error.stderr) if part)
        raise AssertionError(f"{error}\n{printed.decode(errors='replace')}") from None
