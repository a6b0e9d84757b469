"""Whatever dies, or hangs, while a run goes on: it ends as if nothing had been."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.processes import start_time
from tests.faults.launches import Launch, Launcher
from tests.faults.sabotage import sabotage
from tests.faults.victims import agent_of, node_of, trainer_of
from tests.leftovers import Traces, wait_until
from trainer.spec.curve import curve

pytestmark = pytest.mark.slow
STEPS = 120
JOB = """\
name: small
steps: 120
model: {layers: 1, d_model: 16, heads: 2, d_ff: 32}
data: {source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 12}
mesh: {data: -1, fsdp: 1}
evaluate: {every_steps: 40, batches: 1}
sample: null
checkpoint: {every_steps: 30, keep: 100}
"""
SAME = ("step", "loss", "examples", "learning_rate", "tokens")


@pytest.fixture
def start(launch: Launcher) -> Callable[..., Launch]:
    """Start the job on two hosts."""
    (launch.folder / "job.yaml").write_text(JOB)

    def start(name: str = "faulty", provider: str = "", more: str = "", *words: str) -> Launch:
        return launch.on(launch.cluster_file(f"{name}-cluster", provider, more), name, words)

    return start


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[list[Any]]:
    """The curve of a run that nothing happened to."""
    traces, folder = Traces(), tmp_path_factory.mktemp("unbroken")
    launcher = Launcher(folder, traces)
    (folder / "job.yaml").write_text(JOB)
    run = launcher("unbroken")
    assert run.wait() == 0, run.output
    traces.remove()
    return curve_of(run)


def curve_of(run: Launch) -> list[list[Any]]:
    lines = (run.run_dir / "metrics.jsonl").read_text().splitlines()
    return [[line[name] for name in SAME] for line in curve(lines) if "loss" in line]


def ends(run: Launch) -> list[dict[str, Any]]:
    """How its attempts ended, all but the last."""
    return [e for e in run.events() if e["event"] == "attempt_ended"][:-1]


def assert_finished(run: Launch, unbroken: list[list[Any]], traces: Traces) -> None:
    assert run.wait() == 0, run.output
    found = curve_of(run)
    assert [line[0] for line in found] == list(range(1, STEPS + 1))
    assert [line[2:] for line in found] == [line[2:] for line in unbroken]
    losses = [line[1] for line in unbroken]
    assert [line[1] for line in found] == pytest.approx(losses, rel=1e-4)
    traces.assert_nothing_left(timeout_s=5.0)


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


def test_kill_9_of_a_ray_node(start: Callable[..., Launch], unbroken: list, traces: Traces) -> None:
    """The node is replaced; the trainer that it leaves behind does not live on beside the next."""
    run = start()
    run.wait_for_event("step", step=35)
    left = trainer_of(traces, 1)
    os.kill(node_of(traces, 1), signal.SIGKILL)
    wait_until(lambda: start_time(left) is None, 5.0)
    assert_finished(run, unbroken, traces)
    assert [(end["kind"], end["process"]) for end in ends(run)] == [("lost", 1)]


def test_a_preempted_node(start: Callable[..., Launch], unbroken: list, traces: Traces) -> None:
    """It is charged to the preemptions: there is no budget for failures."""
    run = start("faulty", "", "", "retries.failures=0")
    run.wait_for_event("step", step=35)
    os.kill(node_of(traces, 1), signal.SIGTERM)
    assert_finished(run, unbroken, traces)
    assert {end["kind"] for end in ends(run)} <= {"lost", "preempted"}


def test_a_preempted_node_beyond_the_budget(start: Callable[..., Launch], traces: Traces) -> None:
    run = start("faulty", "", "", "retries.preemptions=0", "steps=100000")
    run.wait_for_event("step", step=35)
    os.kill(node_of(traces, 1), signal.SIGTERM)
    assert run.wait() == 1
    assert "retries.preemptions: 0 is spent" in run.output
    traces.assert_nothing_left(timeout_s=5.0)


def test_sigterm_to_one_trainer(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    run = start("faulty", "", "", "retries.failures=0")
    run.wait_for_event("step", step=35)
    os.kill(trainer_of(traces, 1), signal.SIGTERM)
    assert_finished(run, unbroken, traces)
    assert [end["kind"] for end in ends(run)] == ["preempted"]


def test_the_end_of_the_ray_head_is_told_and_a_resume_works(
    start: Callable[..., Launch], launch: Launcher, unbroken: list, traces: Traces
) -> None:
    run = start()
    run.wait_for_event("checkpoint_saved")
    began = time.monotonic()
    for process, command in traces.processes().items():
        if "gcs_server" in command.split(" ", 1)[0]:
            os.kill(process, signal.SIGKILL)
    assert run.wait() == 3, run.output
    assert time.monotonic() - began < 30
    assert "the head of the Ray cluster has ended" in run.output
    assert "launch resume faulty" in run.output
    traces.assert_nothing_left(timeout_s=5.0)
    assert_finished(launch.resume("faulty"), unbroken, traces)


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


def test_two_runs_of_one_name_at_once(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    first, second = start(), start()
    codes = sorted([first.wait(), second.wait()])
    assert codes == [0, 2], first.output + second.output
    assert_finished(first if first.wait() == 0 else second, unbroken, traces)


def test_a_host_that_is_lost_for_good_and_one_that_comes_later(
    launch: Launcher, start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """From four hosts to three, and back to four: one curve."""
    provider = sabotage(tmp_path, "time.sleep(0.3)") + ", replace_after_s: 8"
    cluster = launch.cluster_file("elastic", provider, "wait_for_hosts_s: 2")
    cluster.write_text(cluster.read_text().replace("hosts: 2", "hosts: {min: 2, max: 4}"))
    run = launch.on(cluster, "elastic", ["checkpoint.every_steps=10"])
    run.wait_for_event("step", step=15)
    os.kill(node_of(traces, 3), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    assert [end["kind"] for end in ends(run)] == ["lost", "resized"]
    plans = [json.loads(p.read_text()) for p in sorted((run.run_dir / "plans").iterdir())]
    assert [plan["world"]["hosts_per_slice"] for plan in plans] == [4, 3, 4]
