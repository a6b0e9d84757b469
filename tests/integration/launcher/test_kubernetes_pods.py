"""What follows from the answers of Kubernetes: refusals, and pods that wait or fail."""

import json
from typing import Any, cast

import pytest

from launcher.cluster.schema import Cluster, Kubernetes
from launcher.core.errors import RefusedError
from launcher.core.events import Listener
from launcher.providers.kubernetes import pod_status
from launcher.providers.kubernetes import provider as allocation
from launcher.providers.kubernetes.client import Api
from launcher.providers.kubernetes.errors import (
    ForbiddenError,
    NoKubeRayError,
    PodsError,
    QuotaError,
    refusal,
)
from tests.support.kubernetes.requested import IMAGE


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
