"""Trainers that get stuck, fail or misbehave in their own code while a run goes on."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.host.processes import start_time
from tests.faults.launches import Launch
from tests.faults.matrix import assert_finished, ends
from tests.faults.sabotage import sabotage
from tests.faults.victims import trainer_of
from tests.leftovers import Traces, wait_until

pytestmark = pytest.mark.faults


def test_a_trainer_that_sleeps_is_a_hang_though_its_heart_beats(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    code = "step == 50 and once() and time.sleep(999)"
    run = start("faulty", sabotage(tmp_path, code))
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert (ended["kind"], ended["process"]) == ("hang", 1)
    assert "sitecustomize.py" in run.log(1), "the stacks are in the host's log"


def test_a_slow_host_is_named_and_not_ended(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    run = start("faulty", sabotage(tmp_path, "time.sleep(0.3)"))
    assert_finished(run, unbroken, traces)
    assert ends(run) == []
    slow = [e for e in run.events() if e["event"] == "straggler"]
    assert {e["process"] for e in slow} == {1}
    assert all(e["factor"] > 2 for e in slow)


def test_an_exception_in_one_process(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    run = start("faulty", sabotage(tmp_path, "assert step < 50 or not once(), 'sabotage'"))
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert (ended["kind"], ended["process"]) == ("crash", 1)
    assert "host-0001 exited with code 1" in ended["reason"]


def test_the_same_failure_again_and_again_is_deterministic(
    start: Callable[..., Launch], traces: Traces, tmp_path: Path
) -> None:
    run = start("faulty", sabotage(tmp_path, "assert step != 50, 'sabotage'"))
    assert run.wait() == 1
    last = run.output.strip().splitlines()[-1]
    assert "3 times in a row, each time after step" in last
    assert "sabotage" in run.output
    traces.assert_nothing_left(timeout_s=5.0)


def test_numbers_that_are_not_finite_are_final(
    start: Callable[..., Launch], traces: Traces
) -> None:
    run = start("faulty", "", "", "optimizer.learning_rate=1e30")
    assert run.wait() == 1
    assert "exited with code 65" in run.output
    assert not ends(run)
    traces.assert_nothing_left(timeout_s=5.0)


def test_a_killed_child_of_a_trainer_changes_nothing_else(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """As the kernel ends one for want of memory: the trainer sees its exit status, and goes on."""
    code = "step == 50 and os.spawnvp(os.P_WAIT, 'sh', ['sh', '-c', 'kill -9 $$'])"
    run = start("faulty", sabotage(tmp_path, code))
    assert_finished(run, unbroken, traces)
    assert not ends(run)


def test_a_trainer_that_ignores_sigterm_is_gone_in_time(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    code = "step == 20 and signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    run = start("faulty", sabotage(tmp_path, code))
    run.wait_for_event("step", step=35)
    deaf = trainer_of(traces, 1)
    os.kill(trainer_of(traces, 0), signal.SIGKILL)
    wait_until(lambda: start_time(deaf) is None, 5.0)
    assert_finished(run, unbroken, traces)
