"""Processes that are killed, stopped or told to end: the run ends as if nothing had been."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.host.process_tree import start_time
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage_commits
from tests.support.fault_matrix import JOB, assert_finished, ends
from tests.support.launches import Launch, Launcher
from tests.support.processes import wait_until
from tests.support.programs import agent_of, trainer_of
from tests.support.sampling import sampled
from trainer.checkpoint.commit import TEMPORARY
from trainer.distributed.initialize import HEARTBEAT_S

pytestmark = pytest.mark.faults


MOMENTS: dict[str, dict[str, Any]] = {
    "before_initialization": {"event": "started"},
    "in_compile": {"event": "phase", "name": "compile", "edge": "begin"},
    "in_a_step": {"event": "step", "step": 35},
    "in_evaluation": {"event": "phase", "name": "evaluate", "edge": "begin"},
}


@pytest.mark.parametrize("moment", sampled(MOMENTS.keys(), ()))
def test_kill_9_of_a_trainer(
    start: Callable[..., Launch], unbroken: list, traces: Traces, moment: str
) -> None:
    run = start()
    run.wait_for_event(**MOMENTS[moment], process=0)
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert (ended["end_reason"], ended["process"]) == ("crash", 1)


def test_kill_9_of_a_trainer_in_a_save_commits_nothing(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """All of the checkpoint is written when the kill comes; only its rename is missing."""
    code = "moment == 'checked' and once() and time.sleep(999)"
    run = start("faulty", sabotage_commits(tmp_path, code))
    run.wait_for((tmp_path / "once-").exists)
    (unfinished,) = (run.run_dir / "checkpoints").glob(f"30{TEMPORARY}*")
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    ended = run.wait_for_event("attempt_ended")
    assert (ended["end_reason"], ended["process"]) == ("crash", 1)
    assert_finished(run, unbroken, traces)
    first = next(e for e in run.events() if e["event"] == "step" and e.get("attempt") == 2)
    assert first["step"] == 1, "the save that the kill hit was not committed"
    assert not unfinished.exists()


@pytest.mark.full
def test_kill_9_of_all_trainers(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    run = start()
    run.wait_for_event("step", step=35)
    for victim in (trainer_of(traces, 0), trainer_of(traces, 1)):
        os.kill(victim, signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert ended["end_reason"] == "crash"
    assert "was killed by SIGKILL" in ended["reason"]


@pytest.mark.full
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
    assert (ended["end_reason"], ended["process"]) == ("crash", 0)


AGENTS = {"of_the_coordinator": 0, "of_another_host": 1}


@pytest.mark.parametrize("host", sampled(AGENTS, ("of_another_host",)))
def test_kill_9_of_an_agent(
    start: Callable[..., Launch], unbroken: list, traces: Traces, host: int
) -> None:
    run = start()
    run.wait_for_event("step", step=35)
    os.kill(agent_of(traces, host), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    assert [(end["end_reason"], end["process"]) for end in ends(run)] == [("crash", host)]


def test_sigterm_to_one_trainer(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    run = start("faulty", "", "", "retries.failures=0")
    run.wait_for_event("step", step=35)
    os.kill(trainer_of(traces, 1), signal.SIGTERM)
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["preempted"]


def test_a_stopped_trainer_is_a_hang(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    run = start()
    run.wait_for_event("step", step=35)
    os.kill(trainer_of(traces, 1), signal.SIGSTOP)
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert (ended["end_reason"], ended["process"]) == ("hang", 1)
    assert "host-0001: stopped by a signal (SIGSTOP) in " in ended["reason"]


def test_a_machine_that_pauses_does_no_harm(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    """The pause is longer than JAX's heartbeat limit for processes without a launcher.

    The driver stops first and continues last, so it never sees the other processes stopped.
    """
    run = start()
    run.wait_for_event("step", step=35)
    processes = [run.process.pid, *(set(traces.processes()) - {run.process.pid})]
    for process in processes:
        os.kill(process, signal.SIGSTOP)
    time.sleep(HEARTBEAT_S + 5.0)
    for process in reversed(processes):
        os.kill(process, signal.SIGCONT)
    assert_finished(run, unbroken, traces)
    assert ends(run) == []


def test_two_runs_of_one_name_at_once(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    first, second = start(), start()
    codes = sorted([first.wait(), second.wait()])
    assert codes == [0, 2], first.output + second.output
    assert_finished(first if first.wait() == 0 else second, unbroken, traces)


def test_second_live_run_on_same_storage_is_refused_first_continues(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """The second one is launched in another folder, where nothing of the first is known."""
    storage = f"storage={tmp_path / 'shared'}"
    first = start("faulty", "", "", storage)
    first.wait_for_event("checkpoint_saved")
    (tmp_path / "elsewhere").mkdir()
    launch = Launcher(tmp_path / "elsewhere", traces)
    (launch.folder / "job.yaml").write_text(JOB)
    second = launch.on(launch.cluster_file("small"), "faulty", [storage])
    assert second.wait() == 2, second.output
    assert "holds the checkpoints of another run" in second.output
    assert_finished(first, unbroken, traces)
    assert ends(first) == []


@pytest.mark.full
def test_a_run_behind_a_proxy_that_answers_nothing_is_as_any_other(
    start: Callable[..., Launch],
    unbroken: list,
    traces: Traces,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Neither Ray nor JAX sends anything between the hosts through it."""
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv(name.upper(), "http://127.0.0.1:9")
    run = start()
    assert_finished(run, unbroken, traces)
    assert ends(run) == []
