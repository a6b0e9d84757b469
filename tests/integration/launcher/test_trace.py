"""A request for a trace, to a program that takes such requests as the trainer does."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from launcher.host.process import HostProcess
from launcher.host.profile import Trace, TraceFile
from tests.support.processes import wait_until
from trainer.contract.protocol import profile_request

TRACES = """\
import signal, sys, time
from pathlib import Path
from trainer.contract.protocol import profile_request
run_dir = Path(sys.argv[1])
request = profile_request.path_of(run_dir, 3)

def trace(*_):
    steps = profile_request.read(request)
    (profile_request.folder_of(run_dir, 3) / "trace.pb").write_bytes(bytes(steps))
    request.unlink()

signal.signal(signal.SIGUSR2, trace)
print("ready", flush=True)
time.sleep(600)
"""
IGNORES = "import time; print('ready', flush=True); time.sleep(600)"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], HostProcess]]:
    """Starts a program that has the run's folder as its argument."""
    started: list[HostProcess] = []
    root = str(Path(__file__).parents[3])

    def start(code: str) -> HostProcess:
        command = [sys.executable, "-c", code, str(tmp_path)]
        environment = {**os.environ, "PYTHONPATH": root}
        program = HostProcess(command, environment, tmp_path / "log", tmp_path, 0.0)
        started.append(program)
        wait_until(lambda: program.poll(0.1) and "ready" in (tmp_path / "log").read_text())
        return program

    yield start
    for program in started:
        program.end()


def test_trace_is_complete_when_the_request_is_gone(
    tmp_path: Path, start: Callable[[str], HostProcess]
) -> None:
    trace = Trace(tmp_path, 3)
    assert trace.begin(start(TRACES), steps=5) == ""
    path = "profile/host-0003/trace.pb"
    assert trace.files(30.0) == [TraceFile(path, 5)]
    assert [trace.part(path, 0), trace.part(path, 5)] == [bytes(5), b""]


def test_earlier_traces_are_left_out(tmp_path: Path, start: Callable[[str], HostProcess]) -> None:
    folder = profile_request.folder_of(tmp_path, 3)
    folder.mkdir(parents=True)
    (folder / "earlier.pb").write_bytes(b"x")
    trace = Trace(tmp_path, 3)
    trace.begin(start(TRACES), steps=1)
    assert trace.files(30.0) == [TraceFile("profile/host-0003/trace.pb", 1)]


def test_program_without_a_handler_is_not_killed(
    tmp_path: Path, start: Callable[[str], HostProcess]
) -> None:
    program, trace = start(IGNORES), Trace(tmp_path, 3)
    assert "takes no request for a trace" in trace.begin(program, steps=1)
    assert not profile_request.path_of(tmp_path, 3).exists()
    assert program.poll(0.5).ended_ago_s is None


def test_trace_that_is_not_written_is_not_complete(tmp_path: Path) -> None:
    profile_request.write(profile_request.path_of(tmp_path, 3), 1)
    assert Trace(tmp_path, 3).files(0.2) is None


@pytest.mark.parametrize("text", ["", "[]", '{"steps": 0}', '{"steps": "many"}', "{"])
def test_damaged_request_is_none(tmp_path: Path, text: str) -> None:
    path = profile_request.path_of(tmp_path, 0)
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert profile_request.read(path) is None
