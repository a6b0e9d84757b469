"""How programs of the launcher end."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import atexit, sys, threading, time
from launcher.core.quick_exit import run_and_exit

def main():
    threading.Thread(target=lambda: (time.sleep(0.2), print("thread"))).start()
    atexit.register(print, "atexit")
    {end}

run_and_exit(main)
"""
INTERRUPTED = """
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.parametrize(
    ("end", "code", "error"),
    [
        ("return 3", 3, ""),
        ("return None", 0, ""),
        ("sys.exit(4)", 4, ""),
        ("sys.exit('no')", 1, "no"),
        ("raise LookupError('lost')", 1, "LookupError: lost"),
        (INTERRUPTED, 130, ""),
    ],
)
def test_code_is_that_of_main_after_threads_and_atexit(
    end: str, code: int, error: str, tmp_path: Path
) -> None:
    """Also when Ctrl-C arrives in code made of text: Python then has an exit code of its own."""
    (tmp_path / "program.py").write_text(PROGRAM.format(end=end))
    path = [str(tmp_path), str(Path(__file__).parents[3])]
    done = subprocess.run(
        [sys.executable, "-m", "program"],
        env={"PYTHONPATH": ":".join(path)},
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout) == (code, "thread\natexit\n")
    assert done.stderr.strip().endswith(error)
