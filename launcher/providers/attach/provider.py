"""Hosts of an existing Ray cluster, which is left unchanged at the end.

This process becomes a driver of that cluster. The placement groups and agents that it creates
belong to its Ray job: Ray ends them when this process ends for any reason.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.cluster.attach import Attach, is_address
from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.core.ipv4 import check_ipv4
from launcher.planning.spec import LaunchSpec
from launcher.providers.base import HostProvider
from launcher.providers.ray import raylets
from launcher.providers.ray.existing_cluster import NO_TOKEN, Probe, query, ray_variables
from launcher.providers.ray.head_monitor import unreachable
from launcher.providers.ray.host_cluster import ExternalCluster, HostCluster, WarmCluster
from launcher.providers.ray.probe import ClusterAnswer
from trainer.contract.config.job import BaseJob
from trainer.contract.config.loader import ConfigError

CONNECT_TIMEOUT_S = 5.0
RAY_FIRST = "start it with `ray start --head`, then `ray start --address=...` on other hosts"


class AttachProvider(HostProvider):
    """Takes nodes of a running Ray cluster as hosts."""

    def __init__(self, settings: Attach) -> None:
        self._settings = settings

    def check(self, spec: LaunchSpec, *, later: bool = False) -> None:
        """Raises HostError when the cluster cannot be reached or its token cannot be read.

        Raises ConfigError when other users could read the job's secrets.
        """
        del later
        check(self._settings)
        _refuse_readable_secrets(spec.job, self._settings)

    @contextmanager
    def allocate(self, spec: LaunchSpec, listener: Listener) -> Iterator[HostCluster]:
        """Yields the cluster, and leaves it running on exit."""
        del spec
        with join(self._settings, listener) as hosts:
            yield hosts


def _refuse_readable_secrets(job: BaseJob, settings: Attach) -> None:
    """Raises ConfigError when the job has secrets and the cluster accepts tasks without a token."""
    if job.secrets and is_open(settings):
        raise ConfigError(
            [
                f"secrets: {', '.join(job.secrets)}: the Ray cluster at {settings.address} has no "
                "token, so any process that reaches it can read them. Start its head with "
                "RAY_AUTH_MODE=token and set provider.token_path to the token's file, or remove "
                "`secrets` from the job"
            ]
        )


def check(settings: Attach) -> None:
    """Raises HostError when the settings cannot work, before anything is created."""
    ray_variables(settings)
    _reachable_address(settings)


def is_open(settings: Attach) -> bool:
    """Returns whether the cluster accepts tasks from any process, which can read what it is sent.

    Raises HostError when the head is unreachable.
    """
    if settings.own:
        return False
    variables, address = ray_variables(settings), _reachable_address(settings)
    if variables == NO_TOKEN:
        return True
    anonymous = Probe(address, NO_TOKEN)
    try:
        return anonymous.lets_in
    finally:
        anonymous.end()


def join(settings: Attach, listener: Listener) -> HostCluster:
    """Returns the cluster at that address, once it has granted access.

    Raises HostError with the failed attempt and the remedy.
    """
    variables = ray_variables(settings)
    address = _reachable_address(settings)
    if settings.own and settings.token_path:
        return WarmCluster(address, address.rpartition(":")[0], Path(settings.token_path))
    driver_ip = _node_here(address, query(address, variables, listener))
    return ExternalCluster(address, driver_ip, variables, settings.labels)


def _reachable_address(settings: Attach) -> str:
    """Returns the head's address. Raises HostError when it is not unique or nothing listens."""
    address = settings.address if settings.address != "auto" else _address_found()
    check_ipv4(address.rpartition(":")[0], "the Ray head")
    if why := unreachable(address, CONNECT_TIMEOUT_S):
        raise HostError(
            f"no response from {address} within {CONNECT_TIMEOUT_S:.0f} s ({why}): {RAY_FIRST}"
        )
    return address


def _address_found() -> str:
    """Returns the address in RAY_ADDRESS, or of the cluster that this process is part of.

    Elsewhere, this machine must be a node of one cluster only.

    Raises HostError when neither gives an address.
    """
    named = os.environ.get("RAY_ADDRESS", "")
    if named not in ("", "auto"):
        if not is_address(named):
            raise HostError(f"RAY_ADDRESS: expected HOST:PORT of a Ray head, found {named!r}")
        return named
    if here := raylets.cluster_of_this_process():
        return here
    found = sorted(raylets.of_this_machine(raylets.CLUSTER))
    if len(found) == 1:
        return found[0]
    if found:
        raise HostError(
            "provider.address: auto: this machine is a node of several Ray clusters. Set it to one "
            f"of them: {', '.join(found)}"
        )
    raise HostError(f"provider.address: auto: no Ray runs on this machine; {RAY_FIRST}")


def _node_here(address: str, answer: ClusterAnswer) -> str:
    """Returns the address of this machine's node: the head, if it is one of several.

    Raises HostError when this machine has no node of the cluster.
    """
    ours = raylets.of_this_machine(raylets.NODE_ID)
    here = [node for node in answer.nodes if node.id in ours]
    if not here:
        addresses = ", ".join(node.address for node in answer.nodes)
        raise HostError(
            f"this machine is not a node of the Ray cluster at {address}. Run the command on one "
            f"of its nodes ({addresses})"
        )
    return min(here, key=lambda node: not node.is_head).address
