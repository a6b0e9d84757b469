"""The table of providers: which class gives hosts for which section of a cluster file."""

from collections.abc import Callable, Mapping
from typing import Any

from launcher.cluster.attach import Attach
from launcher.cluster.kubernetes import Kubernetes
from launcher.cluster.local import Local
from launcher.cluster.schema import Cluster
from launcher.cluster.slurm import Slurm
from launcher.providers.attach.provider import AttachProvider
from launcher.providers.base import HostProvider
from launcher.providers.kubernetes.provider import KubernetesProvider
from launcher.providers.local.provider import LocalProvider
from launcher.providers.slurm.provider import SlurmProvider

PROVIDERS: Mapping[type, Callable[[Any], HostProvider]] = {
    Local: LocalProvider,
    Attach: AttachProvider,
    Slurm: SlurmProvider,
    Kubernetes: KubernetesProvider,
}
"""Section of the cluster file -> provider. Runs on SSH hosts, on Cloud TPU and through a Jobs API
are driven by a process on those hosts, whose own cluster file has an `attach` section."""


def provider_for(cluster: Cluster, simulated: bool) -> HostProvider:
    """Returns the provider of a cluster's hosts; simulated hosts are always local.

    Raises KeyError for a cluster whose runs are driven by one of its own hosts.
    """
    if simulated:
        return LocalProvider(cluster.provider.simulation)
    return PROVIDERS[type(cluster.provider)](cluster.provider)
