"""Hosts in network namespaces that their network cuts off: lost, fenced, and back again."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.host.process_tree import start_time
from tests.support.assert_no_leftovers import Traces
from tests.support.fault_injection import sabotage, sabotage_commits
from tests.support.fault_matrix import assert_finished, ends
from tests.support.launches import Launch, Launcher
from tests.support.network_links import IS_ROOT_WITH_IP, Link
from tests.support.processes import wait_until
from tests.support.programs import trainer_of
from trainer.contract.records import checkpoint_metadata

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(not IS_ROOT_WITH_IP, reason="network namespaces need root and `ip`"),
]
FENCED_S = 75.0
"""An agent that nobody asks for a minute ends itself."""


@pytest.fixture(autouse=True)
def _no_namespace_is_left(traces: Traces) -> None:
    traces.watch_namespaces()


def elastic(launch: Launcher, provider: str) -> Launch:
    """A long run of one or two hosts, each in a network namespace of its own."""
    more, hosts = "wait_for_hosts_s: 2", "{min: 1, max: 2}"
    cluster = launch.cluster_file("elastic", f"{provider}, netns: true", more, hosts)
    return launch.on(cluster, "elastic", ["steps=100000"])


@pytest.mark.full
def test_hosts_in_network_namespaces_train_together(launch: Launcher, traces: Traces) -> None:
    run = launch(provider=", netns: true")
    run.wait_for_step()
    namespaces = {Path(f"/proc/{trainer_of(traces, p)}/ns/net").readlink() for p in (0, 1)}
    assert len(namespaces) == 2
    run.process.kill()
    run.wait()
    traces.assert_nothing_left()


def test_cut_off_host_is_lost_and_run_continues_when_it_returns(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    run = start("faulty", ", netns: true")
    run.wait_for_event("step", step=35)
    link = Link(trainer_of(traces, 1))
    link.down()
    lost = run.wait_for_event("attempt_ended")
    assert (lost["end_reason"], lost["process"]) == ("lost", 1)
    run.wait_for_event("state", state="waiting_for_hosts")
    link.up()
    assert_finished(run, unbroken, traces)
    assert [end["end_reason"] for end in ends(run)] == ["lost"]


def test_silenced_host_ends_itself_and_others_continue(
    launch: Launcher, start: Callable[..., Launch], traces: Traces, tmp_path: Path
) -> None:
    slow = sabotage(tmp_path, "time.sleep(0.05)", host=0)  # leaves the cores to other tests
    run = elastic(launch, slow)
    run.wait_for_event("checkpoint_saved")
    cut_off = trainer_of(traces, 1)
    Link(cut_off).lose_all()
    run.wait_for_event("step", attempt=2)
    wait_until(lambda: start_time(cut_off) is None, FENCED_S)
    assert [end["end_reason"] for end in run.events() if end["event"] == "attempt_ended"] == [
        "lost"
    ]
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(timeout_s=60.0) == 130, run.output
    traces.assert_nothing_left(timeout_s=5.0)


HALTED = """\
if moment == "checked" and once("halted"):
        while not os.path.exists({committed!r}):
            time.sleep(0.1)
    if moment in ("renamed", "failed"):
        once(moment)
"""


def test_process_0_cut_off_in_a_save_commits_nothing_after_a_newer_attempt(
    launch: Launcher, start: Callable[..., Launch], traces: Traces, tmp_path: Path
) -> None:
    """It halts right before its rename, until the newer attempt has committed the same step."""
    folder = launch.folder / "runs" / "elastic" / "checkpoints"
    provider = sabotage_commits(tmp_path, HALTED.format(committed=str(folder / "30")))
    run = elastic(launch, provider)
    renamed, failed = tmp_path / "once-renamed", tmp_path / "once-failed"
    run.wait_for((tmp_path / "once-halted").exists)
    Link(trainer_of(traces, 0)).lose_all()
    lost = run.wait_for_event("attempt_ended")
    assert (lost["end_reason"], lost["process"]) == ("lost", 0)
    run.wait_for(lambda: renamed.exists() or failed.exists())
    assert not renamed.exists()
    assert checkpoint_metadata.read(folder / "30").attempt == 2
    assert json.loads((folder / "lease.json").read_text())["attempt"] == 2
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(timeout_s=60.0) == 130, run.output
    traces.assert_nothing_left(timeout_s=5.0)


@pytest.mark.full
def test_a_slow_network_does_no_harm(
    start: Callable[..., Launch], unbroken: list, traces: Traces
) -> None:
    run = start("faulty", ", netns: true")
    run.wait_for_event("step", step=35)
    with Link(trainer_of(traces, 1)).delayed(0.2):
        first = max(e["step"] for e in run.events() if e["event"] == "step")
        run.wait_for_event("step", step=first + 5)
    assert_finished(run, unbroken, traces)
    assert ends(run) == []
    metrics = [json.loads(m) for m in (run.run_dir / "metrics.jsonl").read_text().splitlines()]
    assert max(m["step_time_s"] for m in metrics if "loss" in m) > 1, "messages were delayed"
