"""Kubernetes objects of a run: a KubeRay RayCluster, and the Secret with its token (pure)."""

import re
import secrets
from typing import Any

from launcher.cluster import gke
from launcher.cluster.kubernetes import Kubernetes
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World

GROUP, VERSION, PLURAL = "ray.io", "v1", "rayclusters"
TOKEN_KEY = "auth_token"
"""Key of the token in the Secret; KubeRay uses it in the Secrets that it creates itself."""
GCS_PORT, GCS_PORT_NAME = 6379, "gcs-server"
"""Ray's default port, and its name in KubeRay (DefaultGcsServerPort, GcsServerPortName)."""
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
LONGEST_NAME = 53
"""Longest name of a RayCluster that KubeRay accepts (its MaxRayClusterNameLength)."""
CHIPS = {"tpu": "google.com/tpu", "gpu": "nvidia.com/gpu"}
"""Resource names of chips, and taints of the nodes that have them."""
HEAD_RESOURCES = {"cpu": "2", "memory": "4Gi"}
"""The head runs no tasks, but a queue needs numbers; head and dashboard alone use 1.5 GB."""


def new_name(run: str) -> str:
    """Returns a name for a run's objects: a DNS label (RFC 1035) unique to this launch."""
    suffix = secrets.token_hex(3)
    plain = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    kept = f"slipway-{plain}"[: LONGEST_NAME - len(suffix) - 1].strip("-")
    return f"{kept}-{suffix}"


def token_secret(name: str, token: str, owner: str) -> dict[str, Any]:
    """Returns the Secret with the token of the Ray cluster of that name.

    `owner` is the cluster's uid: Kubernetes deletes the Secret whenever the cluster is deleted.
    """
    reference = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "RayCluster", "name": name}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "ownerReferences": [{**reference, "uid": owner}]},
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }


def ray_cluster(
    name: str, world: World, settings: Kubernetes, ray_version: str, priority: int
) -> dict[str, Any]:
    """Returns a head that runs no tasks and a pod per host; a TPU replica is a whole slice.

    `priority` is the job's; it decides the priority class of the pods, or of Kueue's workload.
    """
    labels = {"app.kubernetes.io/managed-by": "slipway"}
    priority_class = settings.priority_class(priority)
    if settings.queue:
        labels[QUEUE_LABEL] = settings.queue
        if priority_class:
            labels[PRIORITY_LABEL] = priority_class
    head = {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "127.0.0.1"},
        "template": _template("ray-head", name, settings, HEAD_RESOURCES),
    }
    hosts = _hosts(name, world, settings)
    if priority_class and not settings.queue:
        for group in (head, hosts):
            group["template"]["spec"]["priorityClassName"] = priority_class
    ports = [{"containerPort": GCS_PORT, "name": GCS_PORT_NAME}]
    head["template"]["spec"]["containers"][0]["ports"] = ports
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "RayCluster",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "rayVersion": ray_version,
            **({"suspend": True} if settings.queue else {}),  # until Kueue admits it
            "headGroupSpec": head,
            "workerGroupSpecs": [hosts],
        },
    }


def _hosts(name: str, world: World, settings: Kubernetes) -> dict[str, Any]:
    is_tpu = world.platform == "tpu"
    replicas = world.slices if is_tpu else world.hosts
    template = _template("ray-worker", name, settings, _resources(world, settings))
    pod = template["spec"]
    selector = {**(gke.selector(_kind(world)) if is_tpu else {}), **settings.node_selector}
    if selector:
        pod["nodeSelector"] = selector
    taints = [*([CHIPS[world.platform]] if world.platform in CHIPS else []), *settings.tolerations]
    if taints:
        pod["tolerations"] = [{"key": taint, "operator": "Exists"} for taint in taints]
    return {
        "groupName": "hosts",
        "replicas": replicas,
        "minReplicas": replicas,
        "maxReplicas": replicas,
        "numOfHosts": world.hosts_per_slice if is_tpu else 1,
        "rayStartParams": {},
        "template": template,
    }


def _template(
    container: str, name: str, settings: Kubernetes, resources: dict[str, str]
) -> dict[str, Any]:
    """Returns the template of a pod; KubeRay adds the command, probes and a /dev/shm volume."""
    token = {"secretKeyRef": {"name": name, "key": TOKEN_KEY}}
    volumes = list(settings.volume_claims.items())
    pod: dict[str, Any] = {
        "name": container,
        "image": settings.image,
        "env": [
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": "RAY_AUTH_TOKEN", "valueFrom": token},
            {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
            # As in node_spec.environment.
            {"name": "RAY_worker_niceness", "value": "0"},
            {"name": "RAY_memory_monitor_refresh_ms", "value": "0"},
        ],
    }
    if resources:
        pod["resources"] = {"requests": resources, "limits": dict(resources)}
    spec: dict[str, Any] = {"containers": [pod]}
    if settings.service_account:
        spec["serviceAccountName"] = settings.service_account
    if volumes:
        pod["volumeMounts"] = [
            {"name": f"claim-{number}", "mountPath": path}
            for number, (path, _) in enumerate(volumes)
        ]
        spec["volumes"] = [
            {"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}}
            for number, (_, claim) in enumerate(volumes)
        ]
    return {"spec": spec}


def _resources(world: World, settings: Kubernetes) -> dict[str, str]:
    """Returns the resources of a host's pod: all its chips, and CPU and memory if configured."""
    asked = {
        "cpu": None if settings.cpu is None else str(settings.cpu),
        "memory": settings.memory,
    }
    if world.platform in CHIPS:
        is_tpu = world.platform == "tpu"
        chips = _kind(world).chips_per_host if is_tpu else world.devices_per_host
        asked[CHIPS[world.platform]] = str(chips)
    return {name: amount for name, amount in asked.items() if amount is not None}


def _kind(world: World) -> accelerators.Accelerator:
    """Returns the accelerator of one of the slices."""
    return accelerators.parse(
        world.accelerator, hosts=world.hosts_per_slice, devices_per_host=world.devices_per_host
    )
