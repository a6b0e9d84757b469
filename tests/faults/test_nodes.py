"""Hosts that are lost, preempted or come back, and the head of them all."""

import json
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.host.process_tree import start_time
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage
from tests.support.fault_matrix import STEPS, assert_finished, ends
from tests.support.launches import Launch, Launcher
from tests.support.processes import wait_until
from tests.support.programs import node_of, reaper_of_nodes, trainer_of
from tests.support.sampling import sampled
from tests.support.worlds import mesh_of
from trainer.contract.records import checkpoint_metadata

pytestmark = pytest.mark.faults


@pytest.mark.full
def test_kill_9_of_a_ray_node(start: Callable[..., Launch], unbroken: list, traces: Traces) -> None:
    """The node is replaced; the trainer that it leaves behind does not live on beside the next."""
    run = start()
    run.wait_for_event("step", step=35)
    left = trainer_of(traces, 1)
    os.kill(node_of(traces, 1), signal.SIGKILL)
    wait_until(lambda: start_time(left) is None, 5.0)
    assert_finished(run, unbroken, traces)
    assert [(end["end_reason"], end["process"]) for end in ends(run)] == [("lost", 1)]
    assert "raylet" not in run.output, "Ray does not print into the display"


def test_a_preempted_node(
    start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """It is charged to the preemptions: there is no budget for failures."""
    slow = "step > 35 and os.environ['SLIPWAY_ATTEMPT'] == '1' and time.sleep(0.2)"
    run = start("faulty", sabotage(tmp_path, slow), "", "retries.failures=0")
    run.wait_for_event("checkpoint_saved", step=30)
    os.kill(node_of(traces, 1), signal.SIGTERM)
    assert_finished(run, unbroken, traces)
    (ended,) = ends(run)
    assert ended["end_reason"] in ("lost", "preempted")
    saved = [
        checkpoint_metadata.read(path) for path in (run.run_dir / "checkpoints").glob("*[0-9]")
    ]
    newest = max(about.step for about in saved if about.attempt == 1)
    assert {e["step"] for e in run.events() if e["event"] == "restored"} == {newest}
    metrics = [json.loads(m) for m in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    again = [line["step"] for line in metrics if "loss" in line and line["attempt"] == 2]
    assert again == list(range(newest + 1, STEPS + 1))


@pytest.mark.full
def test_host_unfit_for_later_attempt_is_a_crash_and_retried(
    start: Callable[..., Launch], launch: Launcher, unbroken: list, traces: Traces
) -> None:
    """Its corpus is away while the new host is checked, as storage that is not mounted yet."""
    corpus, away = launch.folder / "corpus", launch.folder / "away"
    run = start()
    run.wait_for_event("step", step=35)
    corpus.rename(away)
    os.kill(node_of(traces, 1), signal.SIGKILL)
    run.wait_for(lambda: len([e for e in run.events() if e["event"] == "attempt_ended"]) >= 2)
    away.rename(corpus)
    assert_finished(run, unbroken, traces)
    kinds = [end["end_reason"] for end in ends(run)]
    assert kinds[:2] == ["lost", "crash"]
    assert set(kinds[2:]) <= {"crash"}, "while it was still away"


@pytest.mark.full
def test_a_preempted_node_beyond_the_budget(start: Callable[..., Launch], traces: Traces) -> None:
    run = start("faulty", "", "", "retries.preemptions=0", "steps=100000")
    run.wait_for_event("step", step=35)
    os.kill(node_of(traces, 1), signal.SIGTERM)
    assert run.wait() == 1
    assert "retries.preemptions: 0 is spent" in run.output
    traces.assert_nothing_left(timeout_s=5.0)


def test_head_loss_exits_3_and_run_resumes(
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


def test_kill_9_of_the_reaper_of_all_nodes_ends_the_run_as_a_lost_cluster(
    start: Callable[..., Launch], traces: Traces
) -> None:
    run = start()
    run.wait_for_event("checkpoint_saved")
    os.kill(reaper_of_nodes(traces), signal.SIGKILL)
    assert run.wait() == 3, run.output
    assert "the head of the Ray cluster has ended" in run.output
    assert "launch resume faulty" in run.output
    assert json.loads((run.run_dir / "state.json").read_text())["state"] == "failed"
    traces.assert_nothing_left(timeout_s=5.0)


@pytest.mark.parametrize("hosts", sampled({"3 hosts": 3, "4 hosts": 4}, ("3 hosts",)))
def test_a_host_that_is_lost_for_good_and_one_that_comes_later(
    launch: Launcher,
    start: Callable[..., Launch],
    unbroken: list,
    traces: Traces,
    tmp_path: Path,
    hosts: int,
) -> None:
    """To one host less, and back: one curve."""
    slow = "os.environ['SLIPWAY_ATTEMPT'] != '3' and time.sleep(0.3)"
    provider = sabotage(tmp_path, slow) + ", replace_after_s: 8"
    elastic = f"{{min: 2, max: {hosts}}}"
    cluster = launch.cluster_file("elastic", provider, "wait_for_hosts_s: 2", elastic)
    run = launch.on(cluster, "elastic", ["checkpoint.every_steps=10"])
    run.wait_for_event("step", step=15)
    os.kill(node_of(traces, hosts - 1), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["lost", "resized"]
    plans = [json.loads(p.read_text()) for p in sorted(run.run_dir.glob("plans/0*"))]
    assert [plan["world"]["hosts_per_slice"] for plan in plans] == [hosts, hosts - 1, hosts]


@pytest.mark.full
def test_a_slice_that_is_lost_for_good_and_one_that_comes_later(
    launch: Launcher, start: Callable[..., Launch], unbroken: list, traces: Traces, tmp_path: Path
) -> None:
    """From two slices of a simulated pod to one, and back to two: one curve."""
    cluster = launch.folder / "slices.yaml"
    provider = sabotage(tmp_path, "time.sleep(0.3)") + ", replace_after_s: 8"
    cluster.write_text(
        "accelerator: v4-8\nslices: {min: 1, max: 2}\nwait_for_hosts_s: 2\n"
        f"provider: {{kind: local{provider}}}\n"
    )
    run = launch.on(cluster, "slices", ["--simulate", "checkpoint.every_steps=10", "mesh.tensor=2"])
    run.wait_for_event("step", step=15)
    os.kill(node_of(traces, 0), signal.SIGKILL)
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["lost", "resized"]
    plans = [json.loads(p.read_text()) for p in sorted(run.run_dir.glob("plans/0*"))]
    assert [plan["world"]["slices"] for plan in plans] == [2, 1, 2]
    assert [plan["mesh"] for plan in plans] == [
        mesh_of(data=4, tensor=2),
        mesh_of(data=2, tensor=2),
        mesh_of(data=4, tensor=2),
    ]
