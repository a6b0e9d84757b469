"""What Kubernetes is asked for, and what is made of its answers; runs are in tests/kubernetes."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from launcher.cluster import Cluster, Kubernetes
from launcher.exits import NO_CLUSTER
from launcher.providers.kubernetes import pods
from launcher.providers.kubernetes.errors import (
    ForbiddenError,
    NoKubeRayError,
    QuotaError,
    RefusedError,
    refusal,
)
from launcher.providers.kubernetes.manifest import new_name, ray_cluster, token_secret
from tests.kubernetes.crd import LABEL, problems
from tests.leftovers import Traces, run_launcher

JOB = "{name: quick, command: [python, x.py]}"
IMAGE = "registry.example/train:1"


def asked_for(accelerator: str, slices: int = 1, **settings: object) -> dict[str, Any]:
    """A RayCluster, held against the CRD."""
    provider = {"kind": "kubernetes", "image": IMAGE, **settings}
    more = {"hosts": 3, "devices_per_host": 2} if accelerator == "cpu" else {}
    file = {"accelerator": accelerator, "slices": slices, "provider": provider, **more}
    cluster = Cluster.model_validate(file)
    assert isinstance(cluster.provider, Kubernetes)
    made = ray_cluster("slipway-a-1", cluster.world(simulated=False), cluster.provider, "2.60.0")
    assert problems(made) == []
    return made


def group_of(made: dict[str, Any]) -> dict[str, Any]:
    (group,) = made["spec"]["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    return group


def pod_of(made: dict[str, Any]) -> dict[str, Any]:
    return group_of(made)["template"]["spec"]


def test_a_slice_is_one_replica_with_its_hosts_on_nodes_of_its_kind() -> None:
    made = asked_for("v4-32")
    group, pod = group_of(made), pod_of(made)
    assert (group["replicas"], group["numOfHosts"]) == (1, 4)
    assert pod["nodeSelector"] == {
        "cloud.google.com/gke-tpu-accelerator": "tpu-v4-podslice",
        "cloud.google.com/gke-tpu-topology": "2x2x4",
    }
    assert pod["containers"][0]["resources"]["limits"] == {"google.com/tpu": "4"}
    assert pod["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists"}]


def test_several_slices_are_as_many_replicas() -> None:
    made = asked_for("v5e-16", slices=3)
    assert (group_of(made)["replicas"], group_of(made)["numOfHosts"]) == (3, 4)
    assert pod_of(made)["nodeSelector"]["cloud.google.com/gke-tpu-topology"] == "4x4"


def test_gpu_hosts_come_one_by_one_with_all_their_gpus() -> None:
    made = asked_for("h100-16", cpu=96, memory="512Gi", node_selector={"pool": "h100"})
    assert (group_of(made)["replicas"], group_of(made)["numOfHosts"]) == (2, 1)
    resources = pod_of(made)["containers"][0]["resources"]
    assert resources["limits"] == {"cpu": "96", "memory": "512Gi", "nvidia.com/gpu": "8"}
    assert resources["requests"] == resources["limits"]
    assert pod_of(made)["nodeSelector"] == {"pool": "h100"}
    assert pod_of(made)["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists"}]


def test_the_head_places_nothing_and_its_dashboard_is_its_own() -> None:
    head = asked_for("v4-32")["spec"]["headGroupSpec"]
    assert head["rayStartParams"] == {"num-cpus": "0", "dashboard-host": "127.0.0.1"}
    assert "nodeSelector" not in head["template"]["spec"]


def test_a_queue_is_named_and_lets_the_cluster_in() -> None:
    made = asked_for("v4-16", queue="team")
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert made["spec"]["suspend"] is True
    assert "suspend" not in asked_for("v4-16")["spec"]


def test_what_the_cluster_file_says_of_pods_is_said_of_all_of_them() -> None:
    made = asked_for("cpu", service_account="trainer", claims={"/shared": "disk"})
    for template in (made["spec"]["headGroupSpec"]["template"], group_of(made)["template"]):
        pod = template["spec"]
        (container,) = pod["containers"]
        assert container["image"] == IMAGE
        assert pod["serviceAccountName"] == "trainer"
        assert container["volumeMounts"] == [{"name": "claim-0", "mountPath": "/shared"}]
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "disk"}
    assert pod_of(asked_for("v4-8", tolerations=["spot"]))["tolerations"][1]["key"] == "spot"


def test_the_token_is_in_the_secret_alone() -> None:
    secret, made = token_secret("slipway-a-1", "a-token"), asked_for("v4-16")
    (key,) = (key for key, value in secret["stringData"].items() if value == "a-token")
    for template in (made["spec"]["headGroupSpec"]["template"], group_of(made)["template"]):
        environment = {one["name"]: one for one in template["spec"]["containers"][0]["env"]}
        assert environment["RAY_AUTH_MODE"]["value"] == "token"
        reference = {"secretKeyRef": {"name": "slipway-a-1", "key": key}}
        assert environment["RAY_AUTH_TOKEN"] == {"name": "RAY_AUTH_TOKEN", "valueFrom": reference}


@given(st.text(max_size=80))
def test_a_name_is_one_that_kuberay_takes_and_is_new(run: str) -> None:
    made = asked_for("v4-8")
    made["metadata"]["name"] = new_name(run)
    assert problems(made) == [], LABEL
    assert new_name(run) != new_name(run)


def test_the_schema_refuses_what_the_server_would() -> None:
    made = asked_for("v4-8")
    group_of(made)["numHosts"] = 1
    made["metadata"]["name"] = "My_Run"
    assert len(problems(made)) == 2


@pytest.mark.parametrize(
    ("status", "said", "details", "kind", "remedy"),
    [
        (401, "Unauthorized", {}, ForbiddenError, "Log in"),
        (403, "cannot create resource", {"name": "a"}, ForbiddenError, "a role with that"),
        (403, "exceeded quota: small", {"name": "a"}, QuotaError, "ask for more"),
        (404, "the server could not find it", {}, NoKubeRayError, "install the KubeRay operator"),
        (404, 'namespaces "x" not found', {"name": "x"}, RefusedError, "(404)"),
        (409, "already exists", {"name": "a"}, RefusedError, "(409)"),
        (422, "spec is invalid", {"name": "a"}, RefusedError, "(422)"),
    ],
)
def test_a_refusal_says_what_was_asked_where_what_came_and_what_to_do(
    status: int, said: str, details: dict[str, str], kind: type[Exception], remedy: str
) -> None:
    body = json.dumps({"kind": "Status", "message": said, "details": details})
    error = refusal(status, body, "create RayCluster a", "https://server, namespace jobs")
    assert type(error) is kind
    assert str(error).startswith(f"https://server, namespace jobs: create RayCluster a: {said}")
    assert remedy in str(error)


def pod(name: str, kind: str = "worker", **status: object) -> dict[str, Any]:
    labels = {"ray.io/node-type": kind}
    return {"metadata": {"name": name, "labels": labels}, "status": status}


def waits(reason: str, message: str = "") -> list[dict[str, Any]]:
    return [{"state": {"waiting": {"reason": reason, "message": message}}}]


READY = [{"type": "Ready", "status": "True"}]


def test_the_head_is_known_once_it_is_ready() -> None:
    worker = pod("b", phase="Running", podIP="10.0.0.2", conditions=READY)
    assert pods.head_ip([worker, pod("a", "head", phase="Pending")]) is None
    head = pod("a", "head", phase="Running", podIP="10.0.0.1", conditions=READY)
    assert pods.head_ip([worker, head]) == "10.0.0.1"
    assert pods.waiting([worker, head]) == []


def test_of_a_pod_that_waits_its_reason_is_told() -> None:
    unschedulable = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/4 nodes are available: 4 Insufficient google.com/tpu.",
    }  # fmt: skip
    found = [
        pod("a", phase="Pending", conditions=[unschedulable]),
        pod("b", phase="Pending", containerStatuses=waits("ContainerCreating")),
        pod("c", phase="Pending"),
    ]
    assert pods.waiting(found) == [
        "a: Unschedulable: 0/4 nodes are available: 4 Insufficient google.com/tpu.",
        "b: ContainerCreating",
        "c: pending",
    ]
    assert pods.hopeless({}, found) == "", "nodes may come, images may be pulled"


def test_what_no_waiting_ends_is_told_at_once() -> None:
    broken = pod("a", phase="Pending", containerStatuses=waits("ImagePullBackOff", "no such"))
    assert pods.hopeless({}, [broken]) == "a: ImagePullBackOff: no such"
    said = 'pods "a" is forbidden: exceeded quota: small'
    failure = {"type": "ReplicaFailure", "status": "True", "message": said}
    assert pods.hopeless({"status": {"conditions": [failure]}}, []) == said


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "absent"))
    (tmp_path / "job.yaml").write_text(JOB)
    provider = f"{{kind: kubernetes, image: {IMAGE}}}"
    (tmp_path / "pods.yaml").write_text(f"accelerator: v4-16\nprovider: {provider}\n")
    return tmp_path


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    traces.remove()


def test_a_dry_run_prints_what_would_be_asked_for_and_asks_nobody(
    project: Path, traces: Traces
) -> None:
    words = ["-c", "pods.yaml", "job.yaml", "--dry-run"]
    ended = run_launcher(project, traces.environment, *words)
    assert ended.returncode == 0, ended.stderr
    printed = YAML(typ="safe").load(ended.stdout)
    assert problems(printed) == []
    assert group_of(printed)["numOfHosts"] == 2
    assert not (project / "runs").exists()


def test_without_a_way_to_the_cluster_the_exit_code_is_that_of_no_cluster(
    project: Path, traces: Traces
) -> None:
    """Neither client nor kubeconfig: errors of kinds of their own."""
    ended = run_launcher(project, traces.environment, "-c", "pods.yaml", "job.yaml")
    assert ended.returncode == NO_CLUSTER
    assert "Kubernetes" in ended.stderr
    assert not (project / "runs").exists()
