"""Creates a RayCluster for one run, joins it from this machine, and deletes it."""

import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib.metadata import version
from io import StringIO
from pathlib import Path
from typing import Any

from launcher.cluster.kubernetes import Kubernetes
from launcher.core.errors import HostError, UnreachableError
from launcher.core.events import Listener
from launcher.core.formatting import pluralize
from launcher.core.ipv4 import check_ipv4
from launcher.host.process_tree import ProcessTree
from launcher.planning.spec import LaunchSpec
from launcher.providers.base import HostProvider
from launcher.providers.kubernetes import pod_status
from launcher.providers.kubernetes.cleanup import LOG, release
from launcher.providers.kubernetes.client import Api, api_of
from launcher.providers.kubernetes.errors import PodsError, QuotaError
from launcher.providers.kubernetes.manifest import (
    GCS_PORT,
    GCS_PORT_NAME,
    new_name,
    ray_cluster,
    token_secret,
)
from launcher.providers.ray import node_spec
from launcher.providers.ray.existing_cluster import query
from launcher.providers.ray.head_monitor import unreachable
from launcher.providers.ray.host_cluster import ExternalCluster
from launcher.providers.ray.node import NodeSpec
from launcher.providers.ray.node_group import Nodes
from launcher.providers.ray.workspace import (
    new_token,
    private_folder,
    token_variables,
    write_token,
)
from launcher.runs.records import KubernetesRecord
from trainer.contract.planning.plan import World

STUCK_S = 300.0
"""Seconds for a stuck pod to recover: a registry may be down for a while. By then the kubelet has
tried five times."""
CLEAN = "launcher.providers.kubernetes.cleanup"
POLL_INTERVAL_S = 1.0
CONNECT_TIMEOUT_S = 10.0
ENDING_TIMEOUT_S = 150.0
"""Seconds for the reaper, which checks again whether everything is deleted."""
NODE_TIMEOUT_S = 10.0
"""Seconds for the reaper to stop only this machine's node."""


class KubernetesProvider(HostProvider):
    """Creates a RayCluster for each run."""

    def __init__(self, settings: Kubernetes) -> None:
        self._settings = settings

    def check(self, spec: LaunchSpec, *, later: bool = False) -> None:
        """Raises HostError when the API server denies access or KubeRay is not installed."""
        del spec, later
        api_of(self._settings).ray_cluster("slipway")  # any name: checks access and the kind

    def describe(self, spec: LaunchSpec) -> str:
        """Returns the YAML of what is created for a run, besides the Secret."""
        from ruamel.yaml import YAML

        name, text = new_name(spec.run_dir.name), StringIO()
        text.write(f"# `launch` also creates the Secret {name}, with the token of this run.\n")
        YAML().dump(_manifest(name, spec, self._settings), text)
        return text.getvalue()

    def allocate(
        self, spec: LaunchSpec, listener: Listener
    ) -> AbstractContextManager[ExternalCluster]:
        """Creates a RayCluster for the run, yields its hosts, and deletes everything on exit.

        If this process dies, the reaper deletes what is left. Raises HostError with the pods
        that are missing, and the reason.
        """
        return _hosts_of_ray_cluster(spec, self._settings, listener)


@contextmanager
def _hosts_of_ray_cluster(
    spec: LaunchSpec, settings: Kubernetes, listener: Listener
) -> Iterator[ExternalCluster]:
    world, run_dir = spec.provisioned_world, spec.run_dir
    release(run_dir, listener.on_status)  # left by a launcher whose machine went down
    api, name, token = api_of(settings), new_name(run_dir.name), new_token()
    KubernetesRecord(name=name, namespace=settings.namespace, context=settings.context).write(
        run_dir
    )
    folder = private_folder()
    reaped = ProcessTree(folders=[folder], cleanup=[[sys.executable, "-m", CLEAN, str(run_dir)]])
    try:
        made = api.create_ray_cluster(_manifest(name, spec, settings))
        api.create_secret(token_secret(name, token, made["metadata"]["uid"]))
        address = _head_of(api, name, world, settings, listener)
        yield _joined(address, write_token(folder, token), folder, reaped, listener)
    finally:
        _end(run_dir, reaped, listener)


def _manifest(name: str, spec: LaunchSpec, settings: Kubernetes) -> dict[str, Any]:
    return ray_cluster(
        name, spec.provisioned_world, settings, version("ray"), priority=spec.job.priority
    )


def _end(run_dir: Path, reaped: ProcessTree, listener: Listener) -> None:
    """Deletes everything. Raises HostError when the reaper has to retry."""
    timeout_s = ENDING_TIMEOUT_S
    try:
        release(run_dir, listener.on_status)
    except HostError as error:
        timeout_s = NODE_TIMEOUT_S
        log = run_dir / "logs" / LOG
        raise HostError(f"{error}. A background process retries; its log: {log}") from None
    finally:
        reaped.close(timeout_s)


def _head_of(api: Api, name: str, world: World, settings: Kubernetes, listener: Listener) -> str:
    """Waits until all pods are ready; returns the head's address "ip:port".

    A queue may hold the cluster back indefinitely; the time for the pods counts from its release.
    Raises HostError when the pods do not come up.
    """
    total = 1 + world.hosts
    deadline = time.monotonic() + settings.start_timeout_s
    stuck_since: float | None = None
    while True:
        try:
            cluster, found = api.ray_cluster(name), api.pods(name)
        except UnreachableError:
            if time.monotonic() > deadline:
                raise
            time.sleep(POLL_INTERVAL_S)
            continue
        if cluster is None:
            raise PodsError(f"{api.where}: RayCluster {name} was deleted during its start")
        ready = sum(map(pod_status.is_ready, found))
        if ready >= total and (ip := pod_status.head_ip(found)):
            return f"{ip}:{_port(cluster)}"
        stuck = pod_status.stuck(found)
        stuck_since = (stuck_since or time.monotonic()) if stuck else None
        is_stuck = stuck_since is not None and time.monotonic() > stuck_since + STUCK_S
        if why := pod_status.hopeless(cluster, found) or (stuck if is_stuck else ""):
            kind = QuotaError if "exceeded quota" in why else PodsError
            raise kind(f"{api.where}: RayCluster {name} cannot start: {why}")
        if pod_status.is_suspended(cluster):
            deadline = time.monotonic() + settings.start_timeout_s
            listener.on_status(f"RayCluster {name} waits in queue {settings.queue}")
        else:
            but = f"; {stuck}" if stuck else ""
            listener.on_status(f"{ready} of {pluralize(total, 'pod')} of {name} are ready{but}")
        if time.monotonic() > deadline:
            missing = [f"\n  {line}" for line in pod_status.waiting(found)]
            missing += ["\n  and others, which KubeRay has not created"] * (len(found) < total)
            raise PodsError(
                f"{api.where}: {ready} of {pluralize(total, 'pod')} of RayCluster {name} are ready "
                f"after {settings.start_timeout_s:.0f} s (provider.start_timeout_s):"
                + "".join(missing)
            )
        time.sleep(POLL_INTERVAL_S)


def _port(cluster: dict) -> int:
    """Returns the port of Ray's control store on the head, as KubeRay reports it."""
    endpoints = (cluster.get("status") or {}).get("endpoints") or {}
    return int(endpoints.get(GCS_PORT_NAME, GCS_PORT))


def _joined(
    address: str, token_path: Path, folder: Path, reaped: ProcessTree, listener: Listener
) -> ExternalCluster:
    """Starts a node here, for this process to be a driver. Raises HostError."""
    check_ipv4(address.rpartition(":")[0], "the head's pod")
    if why := unreachable(address, CONNECT_TIMEOUT_S):
        raise PodsError(
            f"the head is ready at {address}, but cannot be reached from this machine ({why}). Run "
            "the command inside the pods' network, such as in a pod of the same cluster"
        )
    variables = token_variables(token_path)
    query(address, variables, listener)
    ip = _local_address(address)
    environment = node_spec.environment(token_path)
    host, _, port = address.rpartition(":")

    def driver(_: int, generation: int) -> NodeSpec:
        return node_spec.driver(generation, ip, (host, int(port)), folder, environment)

    nodes = Nodes(reaped, folder, environment, driver, None)
    nodes.start(None, hosts=1)
    nodes.wait_until_up(lambda text: None)
    return ExternalCluster(address, ip, variables, folder=folder)


def _local_address(peer: str) -> str:
    """Returns this machine's address on the route to `peer`; sends nothing."""
    host, _, port = peer.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return probe.getsockname()[0]
