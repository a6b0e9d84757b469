"""`launch logs`: what the hosts printed, from another terminal."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.core.states import RunState
from launcher.runs.directory import RunDir
from launcher.runs.state_file import Position
from tests.support.cli import ROOT, launch
from tests.support.run_folders import add_log, make_run

LINES_TIMEOUT_S = 30.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    """Alive, with two lines of each of its two hosts."""
    with make_run(tmp_path) as run:
        for host in (0, 1):
            add_log(run, host, b"first of %d\nsecond of %d\n" % (host, host))
        yield run


def logs(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return launch(folder, "logs", "small", *words)


def test_all_hosts_are_shown_one_after_the_other(run: RunDir, tmp_path: Path) -> None:
    assert logs(tmp_path).stdout.splitlines() == [
        "host 0 first of 0",
        "host 0 second of 0",
        "host 1 first of 1",
        "host 1 second of 1",
    ]


def test_one_host_is_shown_without_a_prefix(run: RunDir, tmp_path: Path) -> None:
    assert logs(tmp_path, "--host", "1").stdout == "first of 1\nsecond of 1\n"


def test_the_tail_is_of_each_host(run: RunDir, tmp_path: Path) -> None:
    found = logs(tmp_path, "--tail", "1").stdout
    assert found.splitlines() == ["host 0 second of 0", "host 1 second of 1"]


def test_lines_for_programs(run: RunDir, tmp_path: Path) -> None:
    found = [json.loads(line) for line in logs(tmp_path, "-o", "json").stdout.splitlines()]
    assert found[2] == {"host": 1, "line": "first of 1"}


def test_a_host_without_a_log_is_bad_usage(run: RunDir, tmp_path: Path) -> None:
    run.close()
    found = logs(tmp_path, "--host", "7", "-f")
    assert found.returncode == 2
    assert "no log of host 7. Hosts with a log: 0, 1" in found.stderr


def test_binary_output_and_a_last_line_without_an_end_do_no_harm(
    run: RunDir, tmp_path: Path
) -> None:
    add_log(run, 1, bytes(range(256)) + b"x" * 3_000_000)
    found = logs(tmp_path, "--host", "1")
    assert found.returncode == 0, found.stderr
    assert found.stdout.count("x") >= 3_000_000


def test_a_reader_that_ends_early_is_no_error(run: RunDir, tmp_path: Path) -> None:
    add_log(run, 0, b"a line\n" * 100_000)
    command = f"{sys.executable} -m launcher logs small | head -n 1"
    result = subprocess.run(
        command, shell=True, cwd=tmp_path, env=environment(), capture_output=True, timeout=60
    )
    assert result.stdout == b"host 0 first of 0\n"
    assert result.stderr == b""


def test_of_a_run_that_is_over_follow_shows_the_end_and_ends(run: RunDir, tmp_path: Path) -> None:
    run.set_state(RunState.FINISHED, Position(step=40))
    run.close()
    found = logs(tmp_path, "-f")
    assert found.returncode == 0
    assert "host 1 second of 1" in found.stdout
    assert "small finished" in found.stderr


class Following:
    """`launch logs small -f` as a process, and the lines that it prints."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "launcher", "logs", "small", "-f", *words],
            cwd=folder,
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def line(self) -> str:
        """The next line; the command is ended where none comes in time."""
        assert self.process.stdout
        timer = threading.Timer(LINES_TIMEOUT_S, self.process.kill)
        timer.start()
        try:
            return self.process.stdout.readline().rstrip("\n")
        finally:
            timer.cancel()

    def end(self) -> tuple[int, str]:
        """Its exit code, and what it said beside the lines."""
        _, said = self.process.communicate(timeout=LINES_TIMEOUT_S)
        return self.process.returncode, said


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[type[Following]]:
    started: list[Following] = []

    class Started(Following):
        def __init__(self, *words: str) -> None:
            super().__init__(tmp_path, *words)
            started.append(self)

    yield Started
    for following in started:
        following.process.kill()
        following.process.communicate()


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def test_new_lines_are_followed_over_a_rotation_and_to_the_end_of_the_run(
    run: RunDir, follow
) -> None:
    following = follow()
    log = run.folder / "logs" / "host-0000.log"
    assert [following.line() for _ in range(4)][-1] == "host 1 second of 1"
    add_log(run, 0, b"before\n")
    assert following.line() == "host 0 before"
    log.rename(f"{log}.1")
    add_log(run, 0, b"after\nno newline")
    assert following.line() == "host 0 after"
    run.set_state(RunState.FAILED, reason="a bad disk")
    run.close()
    assert following.line() == "host 0 no newline"
    code, said = following.end()
    assert code == 0
    assert "small failed before the first step: a bad disk" in said


def test_ctrl_c_lets_go_and_says_how_to_stop(run: RunDir, follow) -> None:
    following = follow()
    assert following.line() == "host 0 first of 0"
    following.process.send_signal(signal.SIGINT)
    code, said = following.end()
    assert code == 130
    assert "small continues" in said
    assert "launch stop " in said
