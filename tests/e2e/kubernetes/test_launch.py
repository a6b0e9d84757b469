"""Runs on pods of a RayCluster: the API and KubeRay are played, Ray and the trainers are real."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from launcher.core.exit_codes import INTERRUPTED, NO_CLUSTER, OK
from launcher.runs.records import KubernetesRecord
from tests.support.assert_no_leftovers import Traces
from tests.support.kubernetes.kuberay import KubeRay
from tests.support.kubernetes.server import Cluster
from tests.support.launches import Launch
from tests.support.processes import holds, run_launcher, wait_until, written

pytestmark = pytest.mark.kubernetes
WAITS = """\
name: waits
command: [python, -uc, "import time; print('begun'); time.sleep(600)"]
"""
SAME = ("step", "loss", "examples", "learning_rate", "tokens")


def start(project: Path, traces: Traces, name: str, *words: str) -> Launch:
    return Launch(project, traces, name, ["-c", "pods.yaml", "job.yaml", f"name={name}", *words])


def curve(folder: Path) -> list[list[Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [[line[key] for key in SAME] for line in lines if "loss" in line]


def queued(project: Path) -> None:
    file = project / "pods.yaml"
    file.write_text(file.read_text().replace("jobs,", "jobs, queue: team,"))


def test_queued_run_has_curve_of_simulated_hosts_and_leaves_nothing(
    project: Path, cluster: Cluster, kuberay: KubeRay, traces: Traces
) -> None:
    queued(project)
    run = start(project, traces, "first", f"storage={project}/storage", "steps=10")
    run.wait_for(lambda: "waits in queue team" in run.output)
    made = json.loads((run.run_dir / KubernetesRecord.FILE).read_text())
    assert cluster.names() == [f"rayclusters/{made['name']}", f"secrets/{made['name']}"]
    kuberay.may_admit.set()
    assert run.wait() == OK, run.output
    assert "finished 10 steps" in run.output
    assert cluster.names() == []
    assert not (run.run_dir / KubernetesRecord.FILE).exists()
    traces.assert_nothing_left()
    simulated = start(project, traces, "simulated", "checkpoint=null", "steps=10", "--simulate")
    assert simulated.wait() == OK, simulated.output
    assert curve(run.run_dir) == curve(simulated.run_dir)
    assert len(curve(run.run_dir)) == 10
    (token,) = cluster.secrets_seen
    assert not [path for path in written(project) if holds(path, token)]


def test_ctrl_c_and_kill_9_of_the_launch_leave_no_pods(
    project: Path, cluster: Cluster, kuberay: KubeRay, traces: Traces
) -> None:
    (project / "job.yaml").write_text(WAITS)
    run = start(project, traces, "stopped")
    run.wait_for(lambda: "begun" in run.output)
    os.kill(run.process.pid, signal.SIGINT)
    assert run.wait() == INTERRUPTED, run.output
    assert cluster.names() == []
    traces.assert_nothing_left()
    killed = start(project, traces, "killed")
    # The kubelet of the stand-in waits for the secret, and holds the deletion up until then.
    killed.wait_for(
        lambda: {"pods", "secrets"} <= {name.partition("/")[0] for name in cluster.names()}
    )
    os.kill(killed.process.pid, signal.SIGKILL)
    killed.process.wait()
    wait_until(
        lambda: not cluster.names() and not (killed.run_dir / KubernetesRecord.FILE).exists()
    )
    traces.assert_nothing_left()


def test_cleanup_retries_absent_api_server_until_nothing_is_left(
    project: Path, cluster: Cluster, kuberay: KubeRay, traces: Traces
) -> None:
    (project / "job.yaml").write_text(WAITS)
    run = start(project, traces, "away")
    run.wait_for(lambda: "begun" in run.output)
    token, cluster.token = cluster.token, "another"
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    log = run.run_dir / "logs" / "kubernetes.log"
    wait_until(lambda: log.exists() and "tries again in 1 s" in log.read_text())
    assert any(name.startswith("rayclusters/") for name in cluster.names())
    cluster.token = token
    wait_until(lambda: "deleted what the run had left" in log.read_text())
    assert cluster.names() == []
    assert not (run.run_dir / KubernetesRecord.FILE).exists()
    traces.assert_nothing_left()


def test_pod_that_cannot_start_is_reported_and_leaves_nothing(
    project: Path, cluster: Cluster, kuberay: KubeRay, traces: Traces
) -> None:
    kuberay.unpullable = 1
    run = start(project, traces, "halfway", "checkpoint=null")
    assert run.wait() == NO_CLUSTER, run.output
    assert 'ImagePullBackOff: Back-off pulling image "absent"' in run.output
    assert cluster.names() == []


def test_what_a_lost_machine_has_left_is_deleted_by_stop(
    project: Path, cluster: Cluster, kuberay: KubeRay, traces: Traces
) -> None:
    """As if the reaper had ended with the launch: the objects are there, and the note."""
    cluster.quota = "exceeded quota: small"
    run = start(project, traces, "lost", "checkpoint=null")
    assert run.wait() == NO_CLUSTER, run.output
    cluster.quota = ""
    about = {"name": "slipway-lost-1", "namespace": "jobs", "context": None}
    (run.run_dir / KubernetesRecord.FILE).write_text(json.dumps(about))
    secret = {"metadata": {"name": "slipway-lost-1"}, "stringData": {"auth_token": "t"}}
    cluster.create("secrets", secret)
    stopped = run_launcher(project, traces.environment, "stop", "lost")
    assert "the Kubernetes resources that the run had left are deleted" in stopped.stdout, (
        stopped.stderr
    )
    assert cluster.names() == []
    assert not (run.run_dir / KubernetesRecord.FILE).exists()
