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
    script = (ROOT / ".ci" / "run").read_text()
    begin, end = script.index("print_skipped()"), script.index("print_times()")
    (tmp_path / "skipped").write_text("test_a: Skipped: no sshd here\n" * 2)
    environment = {**os.environ, FILE: str(tmp_path / "skipped")}
    shown = subprocess.run(
        ["bash", "-c", f"{script[begin:end]}\nprint_skipped"],
        env=environment, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    assert "NOT RUN: 2 tests were skipped" in shown
    assert shown.count("test_a: Skipped: no sshd here") == 2
