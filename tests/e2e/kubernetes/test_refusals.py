"""What Kubernetes refuses: what was asked, where, what came back, and what to do; exit code 3."""

from pathlib import Path

import pytest

from launcher.core.exit_codes import NO_CLUSTER
from tests.support.assert_no_leftovers import Traces
from tests.support.kubernetes.server import Cluster, kubeconfig
from tests.support.processes import run_launcher

pytestmark = pytest.mark.kubernetes


def refused(project: Path, traces: Traces, *words: str) -> str:
    """What a launch says that ends with exit code 3, and makes nothing that lasts."""
    command = ["-c", "pods.yaml", "job.yaml", "checkpoint=null", *words]
    ended = run_launcher(project, traces.environment, *command)
    assert ended.returncode == NO_CLUSTER, ended.stdout + ended.stderr
    return ended.stderr


def test_without_a_kubeconfig(
    project: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(project / "absent"))
    output = refused(project, traces)
    assert "no Kubernetes cluster is configured (the current context of the kubeconfig" in output
    assert "KUBECONFIG to its file" in output
    assert not (project / "runs").exists(), "nothing was made"


def test_a_context_that_is_not_there(project: Path, cluster: Cluster, traces: Traces) -> None:
    file = project / "pods.yaml"
    file.write_text(file.read_text().replace("jobs,", "jobs, context: other,"))
    assert "(context other of the kubeconfig: " in refused(project, traces)


def test_a_server_that_is_not_there(
    project: Path, traces: Traces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(project, 9, "t")))
    output = refused(project, traces)
    assert "http://127.0.0.1:9, namespace jobs: read RayCluster" in output
    assert "no answer (Failed to establish a new connection: " in output
    assert not (project / "runs").exists(), "nothing was made"


def test_a_user_that_it_does_not_know(project: Path, cluster: Cluster, traces: Traces) -> None:
    cluster.token = "another"
    output = refused(project, traces)
    assert "namespace jobs: read RayCluster" in output
    assert "Unauthorized (401). Log in" in output


def test_a_user_that_may_not(project: Path, cluster: Cluster, traces: Traces) -> None:
    cluster.forbidden = {("create", "rayclusters")}
    output = refused(project, traces)
    assert "create RayCluster slipway-small-" in output
    assert 'User "eve" cannot create resource "rayclusters"' in output
    assert "for a role that allows this" in output
    assert cluster.names() == []


def test_a_quota(project: Path, cluster: Cluster, traces: Traces) -> None:
    cluster.quota = "exceeded quota: team, requested: pods=3, used: pods=9, limited: pods=10"
    output = refused(project, traces)
    assert cluster.quota in output
    assert "request more" in output


def test_a_cluster_without_kuberay(project: Path, cluster: Cluster, traces: Traces) -> None:
    cluster.has_kuberay = False
    assert "Install the KubeRay operator" in refused(project, traces)
    assert cluster.names() == []


def test_a_namespace_that_is_not_there(project: Path, cluster: Cluster, traces: Traces) -> None:
    cluster.namespace = "another"
    output = refused(project, traces)
    assert 'namespaces "jobs" not found (404)' in output
    assert "KubeRay" not in output


def test_pods_that_do_not_come(project: Path, cluster: Cluster, traces: Traces) -> None:
    """Nobody plays the operator."""
    file = project / "pods.yaml"
    file.write_text(file.read_text().replace("jobs,", "jobs, start_timeout_s: 2,"))
    output = refused(project, traces)
    assert "0 of 3 pods of RayCluster slipway-small-" in output
    assert "which KubeRay has not created" in output
    assert cluster.names() == []
