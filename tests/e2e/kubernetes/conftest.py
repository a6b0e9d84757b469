"""A Kubernetes cluster that is played on this machine, and a folder that runs are launched from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.kubernetes.kuberay import KubeRay
from tests.support.kubernetes.server import Cluster, kubeconfig, serve
from tests.support.launches import JOB

CLUSTER = """\
accelerator: cpu
hosts: 2
devices_per_host: 1
provider: {kind: kubernetes, namespace: jobs, image: "registry.example/train:1"}
"""


@pytest.fixture
def cluster(project: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    cluster = Cluster()
    server = serve(cluster)
    path = kubeconfig(project.parent, server.server_port, cluster.token)
    monkeypatch.setenv("KUBECONFIG", str(path))
    yield cluster
    server.shutdown()
    server.server_close()


@pytest.fixture
def traces() -> Iterator[Traces]:
    with Traces() as traces:
        yield traces
        traces.assert_nothing_left()


@pytest.fixture
def kuberay(cluster: Cluster, traces: Traces) -> Iterator[KubeRay]:
    kuberay = KubeRay(cluster, traces)
    yield kuberay
    kuberay.close()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    project = tmp_path / "project"
    (project / "corpus").mkdir(parents=True)
    (project / "corpus" / "a.txt").write_text("text of a host " * 400)
    (project / "job.yaml").write_text(JOB.replace("steps: 100000", "steps: 40"))
    (project / "pods.yaml").write_text(CLUSTER)
    return project
