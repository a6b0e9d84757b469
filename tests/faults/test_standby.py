"""Processes that stand by for the next attempt: they run it, and are never missed."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage
from tests.support.fault_matrix import assert_finished, ends
from tests.support.launches import Launch
from tests.support.programs import standby_of, trainer_of

pytestmark = pytest.mark.faults


@pytest.fixture
def run(start: Callable[..., Launch], tmp_path: Path) -> Launch:
    """A run in its steps, which are slow: standby processes are ready before its end."""
    provider = sabotage(tmp_path, "time.sleep(0.1)")
    run = start("faulty", provider, "", "retries.standby_after_s=0")
    run.wait_for_event("step")
    return run


def test_they_run_the_attempt_after_a_crash(run: Launch, unbroken: list, traces: Traces) -> None:
    waiting = [standby_of(traces, process) for process in range(2)]
    run.wait_for_event("checkpoint_saved")
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    run.wait_for_event("step", attempt=2)
    assert [trainer_of(traces, process) for process in range(2)] == waiting
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["crash"]


def test_one_that_was_killed_costs_no_attempt(run: Launch, unbroken: list, traces: Traces) -> None:
    os.kill(standby_of(traces, 1), signal.SIGKILL)
    run.wait_for_event("checkpoint_saved")
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["crash"]
