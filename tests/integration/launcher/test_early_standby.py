"""A standby program that one process offers and another takes over."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from launcher.gang.agent import alike
from launcher.host.process import HostProcess, TakenProcess
from tests.support.host_programs import SAY, collect
from tests.support.processes import wait_until

WAITS = """
print("before the start", flush=True)
say(event="checked", host_name=str(os.getpid()))
open("ready", "w").close()
start = os.fdopen(int(os.environ["SLIPWAY_START_FD"])).readline()
print("after the start", start.strip(), flush=True)
"""
TAKES = """
import sys
from launcher.host.offer import Offer
from launcher.host.process import TakenProcess
program = TakenProcess(Offer(*eval(sys.argv[1])))
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "host.log"
    path.write_text("of an earlier attempt\n")
    return path


@pytest.fixture
def environment() -> dict[str, str]:
    return dict(os.environ)


@pytest.fixture
def offered(tmp_path: Path, environment: dict[str, str]) -> Iterator[HostProcess]:
    """A standby program that has checked its host."""
    command = [sys.executable, "-c", SAY + WAITS]
    program = HostProcess(command, environment, None, tmp_path, 0.5, is_standby=True)
    wait_until((tmp_path / "ready").exists)
    yield program
    with suppress(OSError):  # a test may have let go of it
        program.let_go()


def process_of(taken: HostProcess) -> psutil.Process:
    """The program, from the event that it sent before it was taken over."""
    (checked,) = taken.poll(10.0).events
    return psutil.Process(int(checked.host_name))  # type: ignore[attr-defined]


def test_it_is_started_by_its_new_owner_with_all_that_it_printed(
    offered: HostProcess, log: Path, environment: dict[str, str]
) -> None:
    taken = TakenProcess(offered.offer())
    offered.let_go()
    taken.write_output(log)
    taken.begin({**environment, "ANSWER": "42"})
    update = collect(taken)
    assert [event.kind for event in update.events] == ["checked"]
    assert update.lines[0] == "before the start"
    assert '"changes": {"ANSWER": "42"}' in update.lines[1]
    assert update.status == 0
    assert log.read_text().splitlines() == ["of an earlier attempt", *update.lines]


def test_one_that_nobody_takes_ends_when_it_is_let_go(offered: HostProcess) -> None:
    watched = TakenProcess(offered.offer())
    process = process_of(watched)
    offered.let_go()
    assert process.is_running()
    watched.let_go()
    process.wait(10.0)


def test_it_ends_with_its_new_owner_however_that_ends(offered: HostProcess) -> None:
    offer = repr(tuple(vars(offered.offer()).values()))
    owner = subprocess.Popen(
        [sys.executable, "-c", TAKES, offer],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert owner.stdout and owner.stdout.readline() == b"taken\n"
    watched = os.dup(offered._events)
    offered.let_go()
    owner.kill()
    owner.communicate()
    wait_until(lambda: is_closed(watched))


def is_closed(pipe: int) -> bool:
    """Whether all its writers are gone; reads what they have written."""
    try:
        return os.read(pipe, 1 << 16) == b""
    except BlockingIOError:
        return False


def test_one_that_ended_before_it_was_taken_reports_its_end(
    offered: HostProcess, environment: dict[str, str]
) -> None:
    watched = TakenProcess(offered.offer())
    process = process_of(watched)
    watched.let_go()
    process.kill()
    process.wait(10.0)
    taken = TakenProcess(offered.offer())
    offered.let_go()
    taken.begin(environment)
    assert collect(taken).status == signal.SIGKILL


def test_one_whose_owner_is_gone_cannot_be_taken(offered: HostProcess) -> None:
    offer = offered.offer()
    offered.let_go()
    with pytest.raises(FileNotFoundError):
        TakenProcess(offer)


@pytest.mark.parametrize(
    ("changes", "is_alike"),
    [
        ({}, True),
        ({"SLIPWAY_ATTEMPT": "2", "JAX_COORDINATOR_ADDRESS": "host:1"}, True),
        ({"TPU_WORKER_ID": "1", "no_proxy": "host"}, True),
        ({"JAX_PLATFORMS": "tpu"}, False),
        ({"PYTHONPATH": "/elsewhere"}, False),
        ({"XDG_CACHE_HOME": "/elsewhere"}, False),
    ],
)
def test_it_is_taken_in_the_environment_in_which_it_started_alone(
    changes: dict[str, str], is_alike: bool
) -> None:
    before = {"JAX_PLATFORMS": "cpu", "SLIPWAY_ATTEMPT": "1", "HOME": "/root"}
    assert alike(before, {**before, **changes}) is is_alike
    assert alike({**before, **changes}, before) is is_alike
