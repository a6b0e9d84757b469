"""Queues with real processes: each run once and in order, preemption, and lent hosts."""

import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.core.states import RunState
from launcher.executors.enqueue import add_run
from launcher.queue.folder import queues
from launcher.runs.status import read_status
from tests.support import queue_stubs
from tests.support.fault_injection import sabotage
from tests.support.launch_plans import command_launch
from tests.support.launches import Launcher, curve
from tests.support.processes import LAUNCH_TIMEOUT_S, run_launcher, wait_until
from tests.support.queue_stubs import kill_worker
from tests.support.sampling import IS_FULL

pytestmark = pytest.mark.slow
RUNS, KILLS = (200, 20) if IS_FULL else (60, 10)
STUBS_TIMEOUT_S = 170.0
ONE_HOST = "{accelerator: cpu, hosts: 1, devices_per_host: 1, provider: {kind: local}}"
NOTHING = "{name: urgent, command: ['true'], priority: 1}"


@pytest.fixture(autouse=True)
def _own_queues(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    yield
    for queue in queues():
        kill_worker(queue)


def test_queued_runs_start_once_in_order_while_the_worker_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    moments, spec = random.Random(1), command_launch(tmp_path)
    priorities = {f"run-{number}": moments.randint(-2, 2) for number in range(RUNS)}
    queue = None
    for name, priority in priorities.items():
        job = spec.job.model_copy(update={"name": name, "priority": priority})
        queue = add_run(replace(spec, job=job, run_dir=tmp_path / "runs" / name))
    assert queue
    kills, deadline = 0, time.monotonic() + STUBS_TIMEOUT_S
    while queue.entries() and time.monotonic() < deadline:
        queue.start_worker(queue_stubs.MODULE)
        time.sleep(moments.uniform(0.05, 1.0))
        if kills < KILLS:
            kills += kill_worker(queue)
    assert kills == KILLS
    started = (tmp_path / "runs" / "started").read_text().split()
    assert started == sorted(priorities, key=lambda name: -priorities[name])
    states = {read_status(tmp_path / "runs" / name).state for name in priorities}
    assert states == {RunState.FINISHED}


@pytest.mark.full
@pytest.mark.usefixtures("unhurried")
def test_a_preempted_run_has_the_curve_of_an_undisturbed_one(launch: Launcher) -> None:
    """The worker is killed while the run stops for the other one; any command starts it again."""
    folder, environment = launch.folder, launch.traces.environment
    (folder / "one.yaml").write_text(ONE_HOST)
    (folder / "urgent.yaml").write_text(NOTHING)

    def command(*words: str) -> None:
        ended = run_launcher(folder, environment, *words)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    job = ["-c", "one.yaml", "job.yaml", "steps=300"]
    command(*job, "name=whole")
    whole, low, urgent = (folder / "runs" / name for name in ("whole", "low", "urgent"))
    command(*job, "name=low", "preemptible=true", "--queue")
    wait_until(lambda: read_status(low).step, LAUNCH_TIMEOUT_S)
    command("-c", "one.yaml", "urgent.yaml", "--queue")
    (queue,) = queues()
    wait_until(lambda: any(entry.stop_requested for entry in queue.entries()))
    assert kill_worker(queue)
    command("list")
    wait_until(lambda: read_status(low).state is RunState.FINISHED, LAUNCH_TIMEOUT_S)
    assert read_status(urgent).state is RunState.FINISHED
    assert [len(list((run / "plans").iterdir())) for run in (low, urgent)] == [2, 1]
    assert (urgent / "state.json").stat().st_mtime < (low / "plans" / "0002.json").stat().st_mtime
    assert curve(low) == curve(whole)


@pytest.mark.full
def test_an_elastic_run_lends_a_host_to_another_one_and_takes_it_back(
    launch: Launcher, tmp_path: Path
) -> None:
    """The first run has two hosts, then one beside the other run, then two again.

    No step is repeated.
    """
    slow = sabotage(tmp_path, "time.sleep(0.02)")
    cluster = launch.cluster_file("elastic", slow, hosts="{min: 1, max: 2}")
    (launch.folder / "next.yaml").write_text("{name: next, command: [sleep, '1']}")
    first, second = (launch.folder / "runs" / name for name in ("first", "next"))

    def command(*words: str) -> None:
        ended = run_launcher(launch.folder, launch.traces.environment, *words)
        assert ended.returncode == 0, ended.stdout + ended.stderr

    command("up", str(cluster))
    command("-c", str(cluster), "job.yaml", "name=first", "checkpoint.every_steps=20", "--queue")
    wait_until(lambda: read_status(first).step, LAUNCH_TIMEOUT_S)
    command("-c", str(cluster), "next.yaml", "--queue")
    wait_until(lambda: read_status(second).state is RunState.FINISHED, LAUNCH_TIMEOUT_S)
    wait_until(lambda: len(values(first, "restored", "step")) == 2, LAUNCH_TIMEOUT_S)
    _, restored = values(first, "restored", "step")
    wait_until(lambda: (read_status(first).step or 0) > restored, LAUNCH_TIMEOUT_S)
    command("stop", "first")
    command("down", str(cluster), "--yes")
    assert [hosts_of(run) for run in (first, second)] == [[2, 1, 2], [1]]
    assert values(first, "attempt_ended", "end_reason") == ["shrunk", "resized", "stopped"]
    steps = [step for step, *_ in curve(first)]
    assert steps == list(range(1, len(steps) + 1))


def hosts_of(run: Path) -> list[int]:
    """The number of hosts of each attempt."""
    plans = [json.loads(path.read_text()) for path in sorted((run / "plans").glob("0*.json"))]
    return [plan["world"]["hosts_per_slice"] for plan in plans]


def values(run: Path, event: str, key: str) -> list[Any]:
    """A value of each event of that kind, in order; `restored` once for each attempt."""
    lines = map(json.loads, (run / "events.jsonl").read_text().split("\n")[:-1])
    return [line[key] for line in lines if line["event"] == event and not line.get("process")]
