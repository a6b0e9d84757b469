"""Processes that are killed, stopped or told to end: the run ends as if nothing had been."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from launcher.host.processes import start_time
from tests.faults.launches import Launch
from tests.faults.matrix import assert_finished, ends
from tests.faults.victims import agent_of, trainer_of
from tests.leftovers import Traces, wait_until

pytestmark = pytest.mark.faults


MOMENTS: dict[str, dict[str, Any]] = {
    "before_initialization": {"event": "started"},
    "in_compile": {"event": "phase", "name": "compile", "edge": "begin"},
    "in_a_step": {"event": "step", "step": 35},
    "in_a_save": {"event": "phase", "name": "save", "edge": "begin"},
    "in_evaluation": {"event": "phase", "name": "evaluate", "edge": "begin"},
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_kill_9_of_a_trainer(
    start: Callable[..., Launch], unbroken: list, traces: Traces, moment: str
) -> None:
    run = start()
    run.wait_for_event(**MOMENTS[moment], process=1)
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert (ended["kind"], ended["process"]) == ("crash", 1)


def test_kill_9_of_the_coordinator(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    run = start()
    run.wait_for_event("step", step=35)
    victim, other = trainer_of(traces, 0), trainer_of(traces, 1)
    os.kill(victim, signal.SIGKILL)
    wait_until(lambda: start_time(other) is None, 5.0)
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert (ended["kind"], ended["process"]) == ("crash", 0)


def test_kill_9_of_an_agent(start: Callable[..., Launch], unbroken: list, traces: Traces) -> None:
    run = start()
    run.wait_for_event("step", step=35)
    os.kill(agent_of(traces, 1), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    assert [(end["kind"], end["process"]) for end in ends(run)] == [("lost", 1)]


def test_sigterm_to_one_trainer(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    run = start("faulty", "", "", "retries.failures=0")
    run.wait_for_event("step", step=35)
    os.kill(trainer_of(traces, 1), signal.SIGTERM)
    assert_finished(run, unbroken, traces)
    assert [end["kind"] for end in ends(run)] == ["preempted"]


def test_a_stopped_trainer_is_a_hang(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    run = start()
    run.wait_for_event("step", step=35)
    os.kill(trainer_of(traces, 1), signal.SIGSTOP)
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert (ended["kind"], ended["process"]) == ("hang", 1)
    assert "host-0001: last heard of" in ended["reason"]


def test_two_runs_of_one_name_at_once(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    first, second = start(), start()
    codes = sorted([first.wait(), second.wait()])
    assert codes == [0, 2], first.output + second.output
    assert_finished(first if first.wait() == 0 else second, unbroken, traces)
