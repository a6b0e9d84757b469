"""Spare hosts: their standby processes run the next attempt in place of lost hosts."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage
from tests.support.fault_matrix import assert_finished, ends
from tests.support.launches import Launch, Launcher
from tests.support.processes import wait_until
from tests.support.programs import agent_of, is_training, node_of, standby_of, standbys
from tests.support.sampling import sampled

pytestmark = pytest.mark.faults
KILLED = {"node": (node_of, "lost"), "agent": (agent_of, "crash")}


@pytest.fixture
def flag(tmp_path: Path) -> Path:
    """While this file does not exist, no attempt gets beyond step 40."""
    return tmp_path / "flag"


@pytest.fixture
def run(
    start: Callable[..., Launch], tmp_path: Path, flag: Path, request: pytest.FixtureRequest
) -> Launch:
    """A run on two hosts and a spare. The parameter: when a lost host is replaced."""
    wait = f"while not os.path.exists({str(flag)!r}): time.sleep(0.05)"
    after = getattr(request, "param", "null")
    provider = sabotage(tmp_path, f"step == 40 and exec({wait!r})").replace(
        "host_env: {1:", f"replace_after_s: {after}, host_env: {{2: {{SPARE: here}}, 0:"
    )
    words = ("retries.standby_after_s=0", "deadlines.step_s=300")
    run = start("faulty", provider, "spares: 1", *words)
    run.wait_for_event("checkpoint_saved", step=30)
    return run


def spare_standby(traces: Traces) -> int:
    """The process that waits on the spare host."""
    return standby_of(traces, 0, SPARE="here")


@pytest.mark.parametrize(("what", "end"), sampled(KILLED, ("node",)))
def test_its_standby_process_takes_the_place_of_a_lost_host(
    run: Launch,
    unbroken: list,
    traces: Traces,
    flag: Path,
    what: Callable[[Traces, int], int],
    end: str,
) -> None:
    waiting = [standby_of(traces, 0, SPARE=""), spare_standby(traces)]
    os.kill(what(traces, 1), signal.SIGKILL)
    run.wait_for_event("step", attempt=2)
    assert all(is_training(process) for process in waiting)
    flag.touch()
    assert_finished(run, unbroken, traces)
    assert [ended["end_reason"] for ended in ends(run)] == [end]


@pytest.mark.full
@pytest.mark.parametrize("run", ["0"], indirect=True)
def test_a_host_that_was_replaced_is_the_next_spare(
    run: Launch, unbroken: list, traces: Traces, flag: Path
) -> None:
    spare_standby(traces)
    os.kill(node_of(traces, 1), signal.SIGKILL)
    run.wait_for_event("step", attempt=2)
    wait_until(lambda: len(standbys(traces)) == 3)
    os.kill(node_of(traces, 2), signal.SIGKILL)
    flag.touch()
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["lost", "lost"]


def test_a_host_on_which_two_attempts_end_is_replaced_and_listed(
    start: Callable[..., Launch], launch: Launcher, unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    provider = sabotage(tmp_path, "step == 40 and os._exit(1)")
    run = start("faulty", provider, "spares: 1")
    assert_finished(run, unbroken, traces)
    assert [(end["end_reason"], end["process"]) for end in ends(run)] == [("crash", 1)] * 2
    command = [sys.executable, "-m", "launcher", "status", "faulty"]
    status = subprocess.run(
        command, cwd=launch.folder, env=traces.environment, capture_output=True, text=True
    )
    assert "2 attempts ended on host-0001: the next attempt uses another host" in status.stdout


def test_one_that_dies_costs_no_attempt(
    run: Launch, unbroken: list, traces: Traces, flag: Path
) -> None:
    spare_standby(traces)
    os.kill(node_of(traces, 2), signal.SIGKILL)
    flag.touch()
    assert_finished(run, unbroken, traces)
    assert ends(run) == []
