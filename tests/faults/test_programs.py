"""Trainers that get stuck, fail or misbehave in their own code while a run goes on."""

import math
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.host.process_tree import start_time
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage, sabotage_phases
from tests.support.fault_matrix import assert_finished, ends
from tests.support.launches import Launch
from tests.support.processes import wait_until
from tests.support.programs import trainer_of
from trainer.contract.records import checkpoint_metadata

pytestmark = pytest.mark.faults


@pytest.mark.full
def test_a_trainer_that_sleeps_is_a_hang_though_its_heart_beats(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    code = "step == 50 and once() and time.sleep(999)"
    run = start("faulty", sabotage(tmp_path, code))
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert (ended["end_reason"], ended["process"]) == ("hang", 1)
    assert "sitecustomize.py" in run.log(1), "the stacks are in the host's log"


@pytest.mark.full
def test_hosts_that_are_half_a_minute_apart_in_compile_and_save_do_no_harm(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """35 s is more than the 30 s that gRPC and Gloo wait by default."""
    code = "name in ('compile', 'save') and once(name) and time.sleep(35)"
    run = start("faulty", sabotage_phases(tmp_path, code))
    assert_finished(run, unbroken, traces)
    assert ends(run) == []
    assert {path.name for path in tmp_path.glob("once-*")} == {"once-compile", "once-save"}


@pytest.mark.full
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
    assert (ended["end_reason"], ended["process"]) == ("crash", 1)
    assert "host-0001 exited with code 1" in ended["reason"]


def test_the_same_failure_again_and_again_is_deterministic(
    start: Callable[..., Launch], traces: Traces, tmp_path: Path
) -> None:
    run = start("faulty", sabotage(tmp_path, "assert step != 50, 'sabotage'"))
    assert run.wait() == 1
    assert "3 times in a row, each time after step" in run.reason
    assert "sabotage" in run.output
    traces.assert_nothing_left(timeout_s=5.0)


def test_numbers_that_are_not_finite_are_final(
    start: Callable[..., Launch], traces: Traces
) -> None:
    """What was saved before stays, and nothing comes after it."""
    words = ("optimizer.learning_rate=1e30", "checkpoint.every_steps=1")
    run = start("faulty", "", "", *words)
    assert run.wait() == 1
    assert "exited with code 65" in run.output
    assert not ends(run)
    traces.assert_nothing_left(timeout_s=5.0)
    folder = run.run_dir / "checkpoints"
    last = max(e["step"] for e in run.events() if e["event"] == "step")
    assert checkpoint_metadata.steps(folder) == list(range(last, 0, -1))
    assert f"step {last + 1}: loss" in run.output
    for step in checkpoint_metadata.steps(folder):
        assert math.isfinite(checkpoint_metadata.read(folder / str(step)).loss)


@pytest.mark.full
def test_a_killed_child_of_a_trainer_changes_nothing_else(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """As the kernel ends one when memory runs out: the trainer gets its exit status."""
    child, status = tmp_path / "child", tmp_path / "status"
    waits = (
        "pid = os.spawnvp(os.P_NOWAIT, 'sleep', ['sleep', '999']); "
        f"open({str(child)!r}, 'w').write(f'{{pid}} '); "
        f"open({str(status)!r}, 'w').write(str(os.waitpid(pid, 0)[1]))"
    )
    run = start("faulty", sabotage(tmp_path, f"step == 50 and exec({waits!r})"))
    run.wait_for(lambda: child.exists() and child.read_text().endswith(" "))
    os.kill(int(child.read_text()), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    assert not ends(run)
    assert int(status.read_text()) == signal.SIGKILL


def test_kill_9_during_compilation_needs_no_recompilation(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """Attempt 1 has compiled all of it, attempt 2 is killed while it reads that."""
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    again = f"name == 'compile' and os.path.exists({str(tmp_path / 'once-trained')!r})"
    code = f"name == 'train' and once('trained') and {kill}; {again} and once('again') and {kill}"
    fresh = f"XDG_CACHE_HOME: {tmp_path / 'cache'}"
    provider = sabotage_phases(tmp_path, code).replace("PYTHONPATH", f"{fresh}, PYTHONPATH")
    run = start("faulty", provider)
    assert_finished(run, unbroken, traces)
    assert [(end["end_reason"], end["process"]) for end in ends(run)] == [("crash", 1)] * 2
    compiled = [event for event in run.events() if event["event"] == "compiled"]
    assert compiled[-1]["attempt"] == 3 and compiled[-1]["from_cache"]


def test_sigterm_in_compile_restore_and_evaluation_saves_and_goes_on(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """One attempt for each; the checkpoint between them makes each the first without progress."""
    due = "{'compile': '1', 'restore': '2', 'evaluate': '3'}.get(name, '')"
    is_due = f"{due} == os.environ.get('SLIPWAY_ATTEMPT') and once(name)"
    code = f"{is_due} and os.kill(os.getpid(), signal.SIGTERM)"
    run = start("faulty", sabotage_phases(tmp_path, code), "", "retries.failures=0")
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["preempted"] * 3
    hit = {path.name for path in tmp_path.glob("once-*")}
    assert hit == {"once-compile", "once-restore", "once-evaluate"}


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
