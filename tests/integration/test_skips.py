"""A test that CI skips is named where CI ends."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.skipped_tests import FILE

ROOT = Path(__file__).parents[2]
TESTS = """\
import pytest
def test_passes(): pass
@pytest.mark.skipif(True, reason="no sshd here")
def test_needs_sshd(): pass
def test_needs_slurm(): pytest.skip("no Slurm here")
"""


@pytest.mark.parametrize("workers", ["0", "1"])
def test_skipped_tests_are_listed_once_with_their_reasons(tmp_path: Path, workers: str) -> None:
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_it.py").write_text(TESTS)
    plugin = ["-p", "tests.support.skipped_tests"]
    command = [sys.executable, "-m", "pytest", "-q", *plugin, "-n", workers]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), FILE: str(tmp_path / "skipped")}
    subprocess.run(command, cwd=tmp_path, env=environment, check=True, capture_output=True)
    assert (tmp_path / "skipped").read_text().splitlines() == [
        "test_it.py::test_needs_sshd: Skipped: no sshd here",
        "test_it.py::test_needs_slurm: Skipped: no Slurm here",
    ]


def test_the_end_of_ci_shows_them(tmp_path: Path) -> None:
    (tmp_path / "skipped").write_text("test_a: Skipped: no sshd here\n" * 2)
    shown = _of_ci(tmp_path / "skipped", "print_skipped()", "print_times()", "print_skipped")
    assert "NOT RUN: 2 tests or tiers were skipped" in shown
    assert shown.count("test_a: Skipped: no sshd here") == 2


@pytest.mark.parametrize(("full", "ran"), [("", ["early"]), ("1", ["early", "late"])])
def test_a_tier_that_would_start_too_late_is_listed(
    tmp_path: Path, full: str, ran: list[str]
) -> None:
    (tmp_path / "skipped").touch()
    commands = f"""\
    CI_FULL={full}
    timed() {{ echo "$1"; }}
    SECONDS=60; tier early true
    SECONDS=4800; tier late true
    """
    shown = _of_ci(tmp_path / "skipped", "LATEST_START_S=", "report()", commands)
    assert shown.split() == ran
    listed = (tmp_path / "skipped").read_text().splitlines()
    assert listed == ([] if full else ["tier late: CI had already taken 80 minutes"])


def _of_ci(skipped: Path, begin: str, end: str, commands: str) -> str:
    """Returns what commands print after a part of `.ci/run`."""
    script = (ROOT / ".ci" / "run").read_text()
    part = script[script.index(begin) : script.index(end)]
    return subprocess.run(
        ["bash", "-c", f"{part}\n{commands}"],
        env={**os.environ, FILE: str(skipped)},
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
