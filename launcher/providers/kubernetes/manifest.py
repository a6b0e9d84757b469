"""What Kubernetes is asked for: a RayCluster of KubeRay's, and the Secret with its token (pure)."""

import re
import secrets
from typing import Any

from launcher.cluster import gke
from launcher.cluster.schema import Kubernetes
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World

GROUP, VERSION, PLURAL = "ray.io", "v1", "rayclusters"
TOKEN_KEY = "auth_token"
"""As KubeRay itself calls it in Secrets that it makes."""
GCS_PORT, GCS_PORT_NAME = 6379, "gcs-server"
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
LONGEST_NAME = 53
"""Of a RayCluster: KubeRay refuses longer ones (its MaxRayClusterNameLength)."""
CHIPS = {"tpu": "google.com/tpu", "gpu": "nvidia.com/gpu"}
"""The resources, and the taints of nodes that have them."""
HEAD_RESOURCES = {"cpu": "2", "memory": "4Gi"}
"""It places nothing, but a queue wants numbers: alone the head and its dashboard take 1.5 GB."""


def new_name(run: str) -> str:
    """Of the objects of a run: a DNS label (RFC 1035) that no earlier launch has had."""
    suffix = secrets.token_hex(3)
    plain = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    kept = f"slipway-{plain}"[: LONGEST_NAME - len(suffix) - 1].strip("-")
    return f"{kept}-{suffix}"


def token_secret(name: str, token: str, owner: str) -> dict[str, Any]:
    """Returns the Secret with the token of the Ray cluster of that name.

    `owner`: the cluster's uid. Kubernetes deletes the Secret whenever the cluster is deleted.
    """
    reference = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "RayCluster", "name": name}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "ownerReferences": [{**reference, "uid": owner}]},
        "type": "Opaque",
        "stringData": {TOKEN_KEY: token},
    }


def ray_cluster(name: str, world: World, settings: Kubernetes, ray_version: str) -> dict[str, Any]:
    """A head that places nothing, and a pod for each host; of TPUs a replica is a whole slice."""
    labels = {"app.kubernetes.io/managed-by": "slipway"}
    if settings.queue:
        labels[QUEUE_LABEL] = settings.queue
    head = {
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "127.0.0.1"},
        "template": _template("ray-head", name, settings, HEAD_RESOURCES),
    }
    ports = [{"containerPort": GCS_PORT, "name": GCS_PORT_NAME}]
    head["template"]["spec"]["containers"][0]["ports"] = ports
    return {
        "apiVersion": f"{GROUP}/{VERSION}",
        "kind": "RayCluster",
        "metadata": {"name": name, "labels": labels},
        "spec": {
            "rayVersion": ray_version,
            **({"suspend": True} if settings.queue else {}),  # until Kueue lets it in
            "headGroupSpec": head,
            "workerGroupSpecs": [_hosts(name, world, settings)],
        },
    }


def _hosts(name: str, world: World, settings: Kubernetes) -> dict[str, Any]:
    is_tpu = world.platform == "tpu"
    replicas = world.slices if is_tpu else world.processes
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
    """Of a pod; KubeRay adds the command, probes, and room in /dev/shm."""
    token = {"secretKeyRef": {"name": name, "key": TOKEN_KEY}}
    volumes = list(settings.claims.items())
    pod: dict[str, Any] = {
        "name": container,
        "image": settings.image,
        "env": [
            {"name": "RAY_AUTH_MODE", "value": "token"},
            {"name": "RAY_AUTH_TOKEN", "valueFrom": token},
            {"name": "RAY_USAGE_STATS_ENABLED", "value": "0"},
            # As in simulated.environment.
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
    """Of a host's pod: all of its chips, and what else the cluster file says."""
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
    """The facts of one of its slices."""
    return accelerators.parse(
        world.accelerator, hosts=world.hosts_per_slice, devices_per_host=world.devices_per_host
    )
