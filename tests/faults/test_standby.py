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
def flag(tmp_path: Path) -> Path:
    """While this file does not exist, no attempt gets beyond step 40."""
    return tmp_path / "flag"


@pytest.fixture
def run(start: Callable[..., Launch], tmp_path: Path, flag: Path) -> Launch:
    """A run that waits for the flag, and prepares standby processes meanwhile."""
    wait = f"while not os.path.exists({str(flag)!r}): time.sleep(0.05)"
    provider = sabotage(tmp_path, f"step == 40 and exec({wait!r})")
    words = ("retries.standby_after_s=0", "deadlines.step_s=300")
    run = start("faulty", provider, "", *words)
    run.wait_for_event("step")  # before it, processes that check their hosts stand by
    return run


def test_they_run_the_attempt_after_a_crash(
    run: Launch, unbroken: list, traces: Traces, flag: Path
) -> None:
    waiting = [standby_of(traces, process) for process in range(2)]
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    run.wait_for_event("step", attempt=2)
    assert [trainer_of(traces, process) for process in range(2)] == waiting
    flag.touch()
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["crash"]


@pytest.mark.full
def test_one_that_was_killed_costs_no_attempt(
    run: Launch, unbroken: list, traces: Traces, flag: Path
) -> None:
    os.kill(standby_of(traces, 1), signal.SIGKILL)
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    flag.touch()
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["crash"]
