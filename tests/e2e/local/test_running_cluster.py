"""Runs on a Ray cluster that somebody else started, shared by the tests of this file.

Two slices of two TPU hosts each, and a head; the last test that uses it takes a host away.
"""

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fault_matrix
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch, Launcher
from tests.support.processes import holds, wait_until, written
from tests.support.ray_clusters import RayCluster
from tests.support.worlds import cpu_world, tpu_world

pytestmark = pytest.mark.slow
SLICES = tpu_world("v4-16", (2, 2, 2), (2, 2, 1), slices=2)
NOTHING = {"groups": [], "actors": [], "processes": []}
PROGRAM = """\
import json, os, pathlib, sys, time
names = ("TPU_NAME", "TPU_WORKER_ID", "SLIPWAY_PROCESS_ID", "MEGASCALE_SLICE_ID",
         "MEGASCALE_NUM_SLICES", "MEGASCALE_COORDINATOR_ADDRESS")
print(json.dumps({name: os.environ.get(name) for name in names}), flush=True)
"""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    cluster = RayCluster(SLICES)
    try:
        yield cluster
    finally:
        cluster.close()


@pytest.fixture
def open_cluster() -> Iterator[RayCluster]:
    """One that asks nobody for a token."""
    cluster = RayCluster(cpu_world(1, 1), with_token=False)
    try:
        yield cluster
    finally:
        cluster.close()


def start(
    launch: Launcher, cluster: RayCluster, name: str, hardware: str, *words: str, token: str = ""
) -> Launch:
    """A job on that cluster; `hardware` is the cluster file's without the provider."""
    path = launch.folder / f"{name}-cluster.yaml"
    token = token or str(cluster.token_path)
    provider = {"kind": "attach", "address": cluster.address, "token_path": token}
    storage = f"storage: {launch.folder / 'storage'}"
    path.write_text(f"{hardware}\n{storage}\nprovider: {json.dumps(provider)}\n")
    return launch.on(path, name, words)


ONE_FAILS_ONCE_ALL_HAVE_SPOKEN = """\
spoken = pathlib.Path("storage")
spoken.mkdir(exist_ok=True)
(spoken / os.environ["SLIPWAY_PROCESS_ID"]).touch()
while len(list(spoken.iterdir())) < 4:
    time.sleep(0.05)
if os.environ["SLIPWAY_PROCESS_ID"] == "3":
    sys.exit(7)
time.sleep(600)
"""
CPU = "accelerator: cpu\nhosts: 2\ndevices_per_host: 1"


def runs_program(launch: Launcher, more: str = "") -> None:
    (launch.folder / "program.py").write_text(PROGRAM + more)
    (launch.folder / "job.yaml").write_text("name: any\ncommand: [python, program.py]\n")


def told(run: Launch, process: int) -> dict[str, Any]:
    """What the program of a host said of where it runs."""
    return json.loads(run.log(process).splitlines()[0])


def assert_as_it_was(cluster: RayCluster, traces: Traces) -> None:
    traces.assert_nothing_left()
    wait_until(lambda: not cluster.programs(), 30.0)
    wait_until(lambda: cluster.left() == NOTHING, 60.0)


def test_a_job_has_the_curve_of_a_simulated_run_and_gives_everything_back(
    launch: Launcher,
    cluster: RayCluster,
    traces: Traces,
    unbroken: list,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its hosts do not share the run's folder; what they write comes into it all the same.

    Nothing that is written or printed has the cluster's token or the job's secret.
    """
    secret, token = secrets.token_hex(16), cluster.token_path.read_text()
    monkeypatch.setenv("A_SECRET", secret)
    (launch.folder / "job.yaml").write_text(fault_matrix.JOB)
    words = ["--runs", str(cluster.apart), "secrets=[A_SECRET]"]
    run = start(launch, cluster, "joined", CPU, *words)
    run.run_dir = cluster.apart / "joined"
    fault_matrix.assert_finished(run, unbroken, traces)
    assert run.log(0).count("compiled in") == 1
    assert run.log(1)
    files = written(run.run_dir, launch.folder)
    assert run.run_dir / "plans" in {path.parent for path in files}
    assert [path for path in files if holds(path, token) or holds(path, secret)] == []
    assert token not in run.output
    assert secret not in run.output
    assert_as_it_was(cluster, traces)


def test_slices_are_in_order_and_a_failed_job_leaves_nothing(
    launch: Launcher, cluster: RayCluster, traces: Traces
) -> None:
    runs_program(launch, ONE_FAILS_ONCE_ALL_HAVE_SPOKEN)
    run = start(launch, cluster, "any", "accelerator: v4-16\nslices: 2", "retries.failures=0")
    assert run.wait() == 1, run.output
    assert "host-0003 exited with code 7" in run.output
    hosts = [told(run, process) for process in range(4)]
    assert [(host["TPU_NAME"], host["TPU_WORKER_ID"]) for host in hosts] == [
        ("slice-a", "0"), ("slice-a", "1"), ("slice-b", "0"), ("slice-b", "1"),
    ]  # fmt: skip
    assert [host["MEGASCALE_SLICE_ID"] for host in hosts] == ["0", "0", "1", "1"]
    assert len({host["MEGASCALE_COORDINATOR_ADDRESS"] for host in hosts}) == 1
    assert_as_it_was(cluster, traces)


def test_busy_cluster_is_reported_and_kill_9_returns_everything(
    launch: Launcher, cluster: RayCluster, traces: Traces
) -> None:
    runs_program(launch, "time.sleep(600)")
    first = start(launch, cluster, "first", "accelerator: v4-16")
    first.wait_for(lambda: "ray::Agent" in str(cluster.programs()))
    assert cluster.slice_for_others("2x2x2", "v4") == "slice-b"
    second = start(launch, cluster, "second", "accelerator: v4-16\nslices: 2")
    assert second.wait() == 3, second.output
    assert "those of slice-a are in use by another run" in second.output
    assert f"{cluster.network}.2, slice-a worker 0: CPU 1, TPU 4 (in use: CPU 1" in second.output
    assert f"{cluster.network}.4, slice-b worker 0: CPU 1, TPU 4\n" in second.output
    first.process.kill()
    first.wait()
    assert_as_it_was(cluster, traces)


def test_refused_client_gets_the_reason(
    launch: Launcher, cluster: RayCluster, traces: Traces, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong-token"
    wrong.write_text("0" * 64)
    run = start(launch, cluster, "stranger", CPU, token=str(wrong))
    assert run.wait() == 3
    assert "rejected the token" in run.output
    cluster.claims_versions("2.9.0", "3.9.1")
    run = start(launch, cluster, "older", CPU)
    assert run.wait() == 3
    assert "runs Ray 2.9.0 on Python 3.9.1, and this command Ray" in run.output
    cluster.claims_its_own_versions()
    assert_as_it_was(cluster, traces)


def test_hosts_that_lack_what_a_run_needs_are_named_before_it_starts(
    cluster: RayCluster, traces: Traces
) -> None:
    if not cluster.has_apart:
        pytest.skip("needs root: hosts with a disk of their own")
    here = cluster.apart / "only-here"
    here.mkdir()
    launch = Launcher(here, traces)
    runs_program(launch)
    run = start(launch, cluster, "lacking", "accelerator: v4-16")
    assert run.wait() == 3, run.output
    for worker in (0, 1):
        ip = f"{cluster.network}.{worker + 2}"
        assert f"host-000{worker} ({ip}): no working folder {here}" in run.output
    assert_as_it_was(cluster, traces)


@pytest.mark.full
def test_a_lost_slice_is_replaced_by_another_and_a_missing_worker_is_named(
    launch: Launcher, cluster: RayCluster, traces: Traces
) -> None:
    """The last test of the shared cluster: one of its hosts is gone after it."""
    (launch.folder / "gate").touch()
    runs_program(launch, "while os.path.exists('gate'): time.sleep(0.1)")
    run = start(launch, cluster, "moves", "accelerator: v4-16")
    logs = [run.run_dir / "logs" / f"host-000{process}.log" for process in (0, 1)]
    run.wait_for(lambda: all(log.exists() and log.read_text() for log in logs))
    assert told(run, 0)["TPU_NAME"] == "slice-a"
    cluster.kill_host(1)
    run.wait_for(lambda: "slice-b" in logs[0].read_text())
    (launch.folder / "gate").unlink()
    assert run.wait() == 0, run.output

    both = start(launch, cluster, "both", "accelerator: v4-16\nslices: 2")
    assert both.wait() == 3
    assert "1 of 2 hosts of slice-a are alive; worker 1 is missing" in both.output
    assert f"{cluster.network}.3, slice-a worker 1: gone" in both.output
    assert_as_it_was(cluster, traces)


def test_cluster_without_token_warns_and_its_head_loss_exits_3(
    launch: Launcher,
    open_cluster: RayCluster,
    traces: Traces,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is found by Ray's own variable."""
    monkeypatch.setenv("RAY_ADDRESS", open_cluster.address)
    monkeypatch.setenv("HOME", str(tmp_path))
    runs_program(launch, "time.sleep(600)")
    path = launch.folder / "open.yaml"
    path.write_text("{accelerator: cpu, hosts: 1, devices_per_host: 1, provider: {kind: attach}}")
    run = launch.on(path, "any")
    log = run.run_dir / "logs" / "host-0000.log"
    run.wait_for(lambda: log.exists() and log.read_text())
    assert "accepts unauthenticated commands" in run.output
    open_cluster.kill_head()
    assert run.wait(timeout_s=60.0) == 3, run.output
    assert "the head of the Ray cluster has ended" in run.output
    traces.assert_nothing_left()
