"""One program on one host: events, output and end, as real child processes."""

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from launcher.program import LONGEST_LINE, TAIL_LINES, Batch, Program

SAY = """
import json, os, sys
def say(**event):
    os.write(int(os.environ["SLIPWAY_EVENTS_FD"]), json.dumps(event).encode() + b"\\n")
"""


def start(folder: Path, code: str, grace_s: float = 2.0) -> Program:
    command = [sys.executable, "-c", SAY + code]
    return Program(command, dict(os.environ), folder / "logs" / "host-0000.log", folder, grace_s)


def collect(program: Program, timeout_s: float = 60.0) -> Batch:
    """All that a program says until it is over, as one batch."""
    events, lines = [], []
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        batch = program.poll(1.0)
        events += batch.events
        lines += batch.lines
        if batch.over:
            batch.events, batch.lines = events, lines
            return batch
    raise TimeoutError("the program is not over")


def test_events_and_output_are_handed_over(tmp_path: Path) -> None:
    batch = collect(start(tmp_path, "say(event='step', step=1); print('hello')"))
    assert batch.events == [{"event": "step", "step": 1}]
    assert batch.lines == batch.tail == ["hello"]
    assert batch.status == 0
    assert not batch.stopped


def test_what_is_not_an_event_is_passed_over(tmp_path: Path) -> None:
    code = "os.write(int(os.environ['SLIPWAY_EVENTS_FD']), b'junk\\n[1]\\n{}\\n'); say(event='a')"
    assert collect(start(tmp_path, code)).events == [{"event": "a"}]


def test_every_byte_of_output_is_in_the_log(tmp_path: Path) -> None:
    code = r"os.write(1, b'\xff\xfe\n' + b'x' * 9000 + b'\nno newline'); os.kill(os.getpid(), 6)"
    batch = collect(start(tmp_path, code))
    log = (tmp_path / "logs" / "host-0000.log").read_bytes()
    assert log == b"\xff\xfe\n" + b"x" * 9000 + b"\nno newline"
    assert os.WTERMSIG(batch.status or 0) == signal.SIGABRT
    assert batch.lines[-1] == "no newline"
    assert max(map(len, batch.lines)) == LONGEST_LINE


def test_the_last_lines_are_kept(tmp_path: Path) -> None:
    batch = collect(start(tmp_path, "print(*range(1000), sep='\\n'); sys.exit(7)"))
    assert batch.tail == [str(i) for i in range(1000 - TAIL_LINES, 1000)]
    assert len(batch.lines) == 1000


def test_a_program_that_floods_its_output_loses_nothing(tmp_path: Path) -> None:
    batch = collect(start(tmp_path, "print('\\n'.join(['y' * 99] * 30_000))"))
    assert len(batch.lines) == 30_000


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    began = time.monotonic()
    collect(start(tmp_path, code), timeout_s=30.0)
    assert time.monotonic() - began < 30.0


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); say(event='up'); time.sleep(99)"
    program = start(tmp_path, code, grace_s=0.2)
    while not program.poll(1.0).events:
        pass
    program.stop()
    batch = collect(program, timeout_s=30.0)
    assert batch.stopped


@pytest.mark.parametrize("command", ["/no/such/program", "/"])
def test_a_program_that_cannot_start_says_why(tmp_path: Path, command: str) -> None:
    batch = collect(Program([command], {}, tmp_path / "log", tmp_path, 0.2))
    assert batch.status is None
    assert "could not start" in batch.tail[-1]
