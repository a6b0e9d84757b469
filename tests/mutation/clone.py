"""A clone of the last commit, in which code may be changed, and the way tests run in it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).resolve().parents[2]
CONTAINED = Path(__file__).with_name("contained.py")


def pytest_command(timeout_s: float, arguments: Sequence[str]) -> list[str]:
    """Tests of changed code: they end in time, and nothing that they start outlives them."""
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "-n", "0", "-p", "no:cacheprovider"]
    return [sys.executable, str(CONTAINED), str(timeout_s), *pytest, *arguments]


@contextmanager
def cloned(name: str) -> Iterator[Path]:
    """Yields the folder of a clone, which is removed afterwards."""
    with TemporaryDirectory(prefix=f"mutation-{name}-") as folder:
        clone = Path(folder, "clone")
        subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(clone)], check=True)
        yield clone


def run_in(clone: Path, command: Sequence[object]) -> "subprocess.CompletedProcess[str]":
    """Runs a command to its end; its Python processes import the clone's code."""
    return subprocess.run(
        [str(part) for part in command],
        cwd=clone,
        env=os.environ | {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
    )
