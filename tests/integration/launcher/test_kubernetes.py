"""Requests to Kubernetes and what follows from its answers; tests/e2e/kubernetes has runs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from launcher.cluster.schema import Cluster, Kubernetes
from launcher.core.errors import HostError, RefusedError
from launcher.core.events import Listener
from launcher.core.exit_codes import NO_CLUSTER
from launcher.core.states import RunState
from launcher.providers.kubernetes import cleanup, pod_status
from launcher.providers.kubernetes import provider as allocation
from launcher.providers.kubernetes.client import Api
from launcher.providers.kubernetes.errors import (
    ForbiddenError,
    NoKubeRayError,
    PodsError,
    QuotaError,
    refusal,
)
from launcher.providers.kubernetes.manifest import new_name, ray_cluster, token_secret
from launcher.runs.records import KubernetesRecord
from tests.support.assert_no_leftovers import Traces
from tests.support.kubernetes.crd import LABEL, problems
from tests.support.processes import run_launcher
from tests.support.run_folders import make_run

JOB = "{name: quick, command: [python, x.py]}"
IMAGE = "registry.example/train:1"


def asked_for(
    accelerator: str, slices: int = 1, priority: int = 0, **settings: object
) -> dict[str, Any]:
    """A RayCluster, held against the CRD."""
    provider = {"kind": "kubernetes", "image": IMAGE, **settings}
    more = {"hosts": 3, "devices_per_host": 2} if accelerator == "cpu" else {}
    file = {"accelerator": accelerator, "slices": slices, "provider": provider, **more}
    cluster = Cluster.model_validate(file)
    assert isinstance(cluster.provider, Kubernetes)
    world = cluster.world(simulated=False)
    made = ray_cluster("slipway-a-1", world, cluster.provider, "2.60.0", priority)
    assert problems(made) == []
    return made


def group_of(made: dict[str, Any]) -> dict[str, Any]:
    (group,) = made["spec"]["workerGroupSpecs"]
    assert group["replicas"] == group["minReplicas"] == group["maxReplicas"]
    return group


def pod_of(made: dict[str, Any]) -> dict[str, Any]:
    return group_of(made)["template"]["spec"]


def test_rays_memory_monitor_is_off_in_the_pods_of_hosts() -> None:
    (container,) = pod_of(asked_for("v4-32"))["containers"]
    assert {"name": "RAY_memory_monitor_refresh_ms", "value": "0"} in container["env"]


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


CLASSES = {"normal": 0, "urgent": 5}


@pytest.mark.parametrize(
    ("priority", "expected"), [(-1, None), (0, "normal"), (4, "normal"), (7, "urgent")]
)
def test_a_priority_becomes_the_class_of_the_pods_or_of_kueue(
    priority: int, expected: str | None
) -> None:
    pods = asked_for("v4-16", priority=priority, priority_classes=CLASSES)
    assert pod_of(pods).get("priorityClassName") == expected
    queued = asked_for("v4-16", priority=priority, priority_classes=CLASSES, queue="team")
    assert queued["metadata"]["labels"].get("kueue.x-k8s.io/priority-class") == expected
    assert "priorityClassName" not in pod_of(queued)


def test_a_queue_is_named_and_lets_the_cluster_in() -> None:
    made = asked_for("v4-16", queue="team")
    assert made["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == "team"
    assert made["spec"]["suspend"] is True
    assert "suspend" not in asked_for("v4-16")["spec"]


def test_pod_settings_of_cluster_file_apply_to_all_pods() -> None:
    made = asked_for("cpu", service_account="trainer", volume_claims={"/shared": "disk"})
    for template in (made["spec"]["headGroupSpec"]["template"], group_of(made)["template"]):
        pod = template["spec"]
        (container,) = pod["containers"]
        assert container["image"] == IMAGE
        assert pod["serviceAccountName"] == "trainer"
        assert container["volumeMounts"] == [{"name": "claim-0", "mountPath": "/shared"}]
        assert pod["volumes"][0]["persistentVolumeClaim"] == {"claimName": "disk"}
    assert pod_of(asked_for("v4-8", tolerations=["spot"]))["tolerations"][1]["key"] == "spot"


def test_the_token_is_in_the_secret_alone() -> None:
    secret, made = token_secret("slipway-a-1", "a-token", "uid-1"), asked_for("v4-16")
    (key,) = (key for key, value in secret["stringData"].items() if value == "a-token")
    for template in (made["spec"]["headGroupSpec"]["template"], group_of(made)["template"]):
        environment = {one["name"]: one for one in template["spec"]["containers"][0]["env"]}
        assert environment["RAY_AUTH_MODE"]["value"] == "token"
        reference = {"secretKeyRef": {"name": "slipway-a-1", "key": key}}
        assert environment["RAY_AUTH_TOKEN"] == {"name": "RAY_AUTH_TOKEN", "valueFrom": reference}


def test_the_secret_is_deleted_with_its_ray_cluster() -> None:
    (owner,) = token_secret("slipway-a-1", "a-token", "uid-1")["metadata"]["ownerReferences"]
    assert owner == {
        "apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "slipway-a-1", "uid": "uid-1"
    }  # fmt: skip


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
        (403, "cannot create resource", {"name": "a"}, ForbiddenError, "a role that allows this"),
        (403, "exceeded quota: small", {"name": "a"}, QuotaError, "request more"),
        (404, "the server could not find it", {}, NoKubeRayError, "Install the KubeRay operator"),
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
    assert pod_status.head_ip([worker, pod("a", "head", phase="Pending")]) is None
    head = pod("a", "head", phase="Running", podIP="10.0.0.1", conditions=READY)
    assert pod_status.head_ip([worker, head]) == "10.0.0.1"
    assert pod_status.waiting([worker, head]) == []


def test_waiting_pod_is_reported_with_reason() -> None:
    unschedulable = {
        "type": "PodScheduled", "status": "False", "reason": "Unschedulable",
        "message": "0/4 nodes are available: 4 Insufficient google.com/tpu.",
    }  # fmt: skip
    found = [
        pod("a", phase="Pending", conditions=[unschedulable]),
        pod("b", phase="Pending", containerStatuses=waits("ContainerCreating")),
        pod("c", phase="Pending"),
    ]
    assert pod_status.waiting(found) == [
        "a: Unschedulable: 0/4 nodes are available: 4 Insufficient google.com/tpu.",
        "b: ContainerCreating",
        "c: pending",
    ]
    assert pod_status.hopeless({}, found) == "", "nodes may come, images may be pulled"


def test_permanent_pod_failure_is_reported_at_once() -> None:
    broken = pod("a", phase="Pending", containerStatuses=waits("InvalidImageName", "a b"))
    assert pod_status.hopeless({}, [broken]) == "a: InvalidImageName: a b"
    said = 'pods "a" is forbidden: exceeded quota: small'
    failure = {"type": "ReplicaFailure", "status": "True", "message": said}
    assert pod_status.hopeless({"status": {"conditions": [failure]}}, []) == said


@pytest.mark.parametrize("message", ["manifest unknown", "NotFound: not found", "Unauthorized"])
@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff"])
def test_an_image_that_its_registry_does_not_give_is_hopeless(reason: str, message: str) -> None:
    broken = pod("a", phase="Pending", containerStatuses=waits(reason, message))
    assert pod_status.hopeless({}, [broken]) == f"a: {reason}: {message}"


@pytest.mark.parametrize(
    "reason", ["ErrImagePull", "ImagePullBackOff", "CreateContainerError", "CrashLoopBackOff"]
)
def test_the_first_failure_of_a_pod_may_pass(reason: str) -> None:
    failed = pod("a", phase="Pending", containerStatuses=waits(reason, "503 Service Unavailable"))
    assert pod_status.hopeless({}, [failed]) == ""
    assert pod_status.stuck([pod("b"), failed]) == f"a: {reason}: 503 Service Unavailable"


def test_a_container_that_ends_again_and_again_is_hopeless() -> None:
    crashes = [{**waits("CrashLoopBackOff", "back-off")[0], "restartCount": 3}]
    found = pod("a", phase="Running", containerStatuses=crashes)
    assert pod_status.hopeless({}, [found]) == "a: CrashLoopBackOff: back-off"


class Server:
    """The API of a cluster with one RayCluster, whose pods stand one way after the other."""

    where = "https://server"

    def __init__(self, *found: dict[str, Any]) -> None:
        self._found = list(found)

    def ray_cluster(self, name: str) -> dict[str, Any]:
        return {"spec": {}}

    def pods(self, name: str) -> list[dict[str, Any]]:
        now = self._found.pop(0) if len(self._found) > 1 else self._found[0]
        return [now, pod("b", phase="Running", conditions=READY)]


def head_of(server: Server) -> str:
    provider = {"kind": "kubernetes", "image": IMAGE}
    file = {"accelerator": "cpu", "hosts": 1, "devices_per_host": 1, "provider": provider}
    cluster = Cluster.model_validate(file)
    assert isinstance(cluster.provider, Kubernetes)
    world = cluster.world(simulated=False)
    return allocation._head_of(cast("Api", server), "a", world, cluster.provider, Listener())


def test_a_registry_that_stutters_does_not_end_a_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation, "POLL_INTERVAL_S", 0.0)
    failed = pod("a", "head", containerStatuses=waits("ImagePullBackOff", "503"))
    ready = pod("a", "head", phase="Running", podIP="10.0.0.1", conditions=READY)
    assert head_of(Server(failed, failed, ready)) == "10.0.0.1:6379"


def test_a_pod_that_stays_stuck_ends_a_launch_with_its_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocation, "POLL_INTERVAL_S", 0.0)
    monkeypatch.setattr(allocation, "STUCK_S", 0.05)
    failed = pod("a", "head", containerStatuses=waits("ImagePullBackOff", "503"))
    with pytest.raises(PodsError, match="cannot start: a: ImagePullBackOff: 503"):
        head_of(Server(failed))


def test_what_could_not_be_deleted_is_deleted_later_and_logged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [HostError("no answer"), HostError("no answer"), True]
    waits_s: list[float] = []

    def release(folder: Path) -> bool:
        answer = answers.pop(0)
        if isinstance(answer, HostError):
            raise answer
        return answer

    monkeypatch.setattr(cleanup, "release", release)
    clock = SimpleNamespace(monotonic=time.monotonic, ctime=time.ctime, sleep=waits_s.append)
    monkeypatch.setattr(cleanup, "time", clock)
    (tmp_path / "logs").mkdir()
    assert cleanup.main(tmp_path) == 0
    assert waits_s == [1.0, 2.0]
    first, _, last = (tmp_path / "logs" / cleanup.LOG).read_text().splitlines()
    assert "tries again in 1 s: HostError: no answer" in first
    assert "deleted what the run had left" in last


def test_a_reaper_that_cannot_delete_gives_up_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def release(folder: Path) -> bool:
        raise HostError("no answer")

    monkeypatch.setattr(cleanup, "release", release)
    monkeypatch.setattr(cleanup, "LONGEST_S", -1.0)
    assert cleanup.main(tmp_path) == 1


def left(project: Path, content: str) -> None:
    """A run that has ended, and has left something in Kubernetes."""
    with make_run(project) as run:
        run.set_state(RunState.FAILED, reason="no hosts")
    (run.folder / KubernetesRecord.FILE).write_text(content)


@pytest.mark.parametrize("content", ["", "{}", '{"name": "slip'])
def test_a_torn_note_ends_stop_with_a_message_that_says_what_to_look_for(
    project: Path, traces: Traces, content: str
) -> None:
    left(project, content)
    ended = run_launcher(project, traces.environment, "stop", "small")
    assert ended.returncode == NO_CLUSTER, ended.stderr
    assert "small/kubernetes.json cannot be read: " in ended.stderr
    assert "kubectl get rayclusters --all-namespaces" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("verb", [["status", "small"], ["list"]])
def test_leftover_ray_cluster_is_named_with_delete_command(
    project: Path, traces: Traces, verb: list[str]
) -> None:
    left(project, json.dumps({"name": "slipway-small-1", "namespace": "a", "context": None}))
    shown = run_launcher(project, {**traces.environment, "COLUMNS": "200"}, *verb).stdout
    assert "RayCluster slipway-small-1 in Kubernetes; delete it with: launch stop" in shown


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
