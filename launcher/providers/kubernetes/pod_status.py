"""The state of a RayCluster's pods, derived from the API's objects (pure)."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

Object = Mapping[str, Any]
HOPELESS = "InvalidImageName"
"""Reason of a waiting container that never resolves itself."""
PULL, CRASH = frozenset({"ErrImagePull", "ImagePullBackOff"}), "CrashLoopBackOff"
STUCK = PULL | {CRASH, "CreateContainerError"}
"""Reasons that may be temporary; the kubelet reports them after the first failure."""
NO_SUCH_IMAGE = re.compile(
    r"not ?found|manifest unknown|unauthorized|denied|no match for platform", re.IGNORECASE
)
"""Permanent answers of a registry; other failures of a pull are network errors."""
MOST_RESTARTS = 3


def is_ready(pod: Object) -> bool:
    """Returns whether the pod's containers run and report that they are ready."""
    return any(
        one["type"] == "Ready" and one["status"] == "True" for one in _status(pod, "conditions")
    )


def head_ip(pods: Sequence[Object]) -> str | None:
    """Returns the IP address of the head's pod. Returns None until it is ready."""
    heads = [p for p in pods if p["metadata"]["labels"].get("ray.io/node-type") == "head"]
    return next((pod["status"].get("podIP") for pod in heads if is_ready(pod)), None)


def waiting(pods: Sequence[Object]) -> list[str]:
    """Returns the name of each pod that is not ready, with the reason."""
    return [f"{_name(pod)}: {_why(pod)}" for pod in pods if not is_ready(pod)]


def hopeless(cluster: Object, pods: Sequence[Object]) -> str:
    """Returns why the cluster can never come up; "" when it still may."""
    for one in (cluster.get("status") or {}).get("conditions") or []:
        is_full = "exceeded quota" in one.get("message", "")
        if one["type"] == "ReplicaFailure" and one["status"] == "True" and is_full:
            return one["message"]
    for pod in pods:
        if _is_hopeless(pod):
            return f"{_name(pod)}: {_why(pod)}"
    return ""


def stuck(pods: Sequence[Object]) -> str:
    """Returns the first pod that failed to start but still may; "" when there is none."""
    for pod in pods:
        if any(reason in STUCK for reason, _ in _containers_wait(pod)):
            return f"{_name(pod)}: {_why(pod)}"
    return ""


def _is_hopeless(pod: Object) -> bool:
    restarts = max([one.get("restartCount", 0) for one in _containers(pod)], default=0)
    return any(
        reason == HOPELESS
        or (reason in PULL and NO_SUCH_IMAGE.search(message))
        or (reason == CRASH and restarts >= MOST_RESTARTS)
        for reason, message in _containers_wait(pod)
    )


def is_suspended(cluster: Object) -> bool:
    """Returns whether a queue holds the cluster back."""
    return bool(cluster["spec"].get("suspend"))


def _why(pod: Object) -> str:
    for reason, message in _containers_wait(pod):
        return f"{reason}: {message}" if message else reason
    for one in _status(pod, "conditions"):
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return f"{one.get('reason', 'not scheduled')}: {one.get('message', '')}".rstrip(": ")
    message = pod["status"].get("message") or pod["status"].get("reason")
    return message or str(pod["status"].get("phase", "Pending")).lower()


def _containers_wait(pod: Object) -> list[tuple[str, str]]:
    """Returns reason and message of each container that waits."""
    states = [one.get("state", {}).get("waiting") for one in _containers(pod)]
    return [(state["reason"], state.get("message", "")) for state in states if state]


def _containers(pod: Object) -> list[Object]:
    return [*_status(pod, "initContainerStatuses"), *_status(pod, "containerStatuses")]


def _status(pod: Object, key: str) -> Sequence[Object]:
    return pod["status"].get(key) or []


def _name(pod: Object) -> str:
    return pod["metadata"]["name"]
