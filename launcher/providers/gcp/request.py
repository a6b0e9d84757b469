"""The request for TPU slices, in the types of the Cloud TPU API. Nothing here calls the API.

Values that the cluster file omits come from gcloud's configuration and the accelerator's name.
"""

import configparser
import hashlib
import os
import re
import secrets
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

from pydantic import BaseModel

from launcher.cluster.gcp import Gcp
from launcher.cluster.schema import Cluster
from launcher.core.errors import HostError

if TYPE_CHECKING:
    from google.cloud import tpu_v2


RUNTIME_VERSIONS = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
"""Runtime for JAX by generation: cloud.google.com/tpu/docs/runtimes, November 2026."""
USER = "slipway"
"""Default user, created by the hosts' guest agent for the SSH key in the request."""


class Where(BaseModel):
    """The project and zone of slices, and the API endpoint that serves them."""

    project: str
    zone: str
    endpoint: str | None = None

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.zone}"

    def __str__(self) -> str:
        return f"{self.zone}, project {self.project}"


@dataclass(frozen=True)
class TpuRequest:
    """A complete request for TPU slices, with all defaults filled in."""

    project: str
    zone: str
    accelerator_type: str
    runtime_version: str
    slices: int
    hosts_per_slice: int
    user: str
    settings: Gcp

    @property
    def where(self) -> Where:
        return Where(project=self.project, zone=self.zone, endpoint=self.settings.endpoint)

    @property
    def tier(self) -> str:
        """Pricing tier: "spot", "reserved" or "on demand"."""
        if self.settings.spot:
            return "spot"
        return "reserved" if self.settings.reservation else "on demand"

    def __str__(self) -> str:
        slices = f"{self.slices} slices of " * (self.slices > 1)
        return f"{slices}{self.accelerator_type} ({self.tier}) in {self.where}"


def wanted(cluster: Cluster) -> TpuRequest:
    """Returns the request of a cluster file with a `gcp` section.

    Raises HostError with all settings that are missing.
    """
    settings = cast(Gcp, cluster.provider)
    gcloud = _Gcloud()
    project = settings.project or gcloud.value("core", "project")
    zone = settings.zone or gcloud.value("compute", "zone")
    kind = settings.accelerator_type or cluster.slice.ray_pod_type or ""
    generation = kind.partition("-")[0]
    runtime_version = settings.runtime_version or RUNTIME_VERSIONS.get(generation)
    problems = [
        why for value, why in (
            (project, "project: set provider.project, or `gcloud config set project PROJECT`"),
            (zone, "zone: set provider.zone, or `gcloud config set compute/zone ZONE`"),
            (runtime_version, f"runtime_version: {kind} has no default. Set "
             "provider.runtime_version to one of `gcloud compute tpus versions list`"),
        ) if not value
    ]  # fmt: skip
    if problems:
        raise HostError("\n  ".join(["Cloud TPU: settings are missing:", *problems]))
    return TpuRequest(
        project=project or "",
        zone=zone or "",
        accelerator_type=kind,
        runtime_version=runtime_version or "",
        slices=cluster.slices.max,
        hosts_per_slice=cluster.slice.hosts,
        user=settings.user or USER,
        settings=settings,
    )


class _Gcloud:
    """gcloud's configuration: CLOUDSDK_* variables, then the active configuration's file."""

    def __init__(self) -> None:
        given = os.environ.get("CLOUDSDK_CONFIG")
        folder = Path(given) if given else Path.home() / ".config" / "gcloud"
        name = os.environ.get("CLOUDSDK_ACTIVE_CONFIG_NAME") or _text(folder / "active_config")
        self._file = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            self._file.read_string(_text(folder / "configurations" / f"config_{name or 'default'}"))
        except configparser.Error:
            pass  # its settings are reported as missing

    def value(self, section: str, name: str) -> str | None:
        variable = os.environ.get(f"CLOUDSDK_{section}_{name}".upper())
        return variable or self._file.get(section, name, fallback=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


LONGEST_NAME = 40
CREATED_BY, OF_CLUSTER, OF_RUN = "created-by", "slipway-cluster", "slipway-run"


def new_id(run: str) -> str:
    """Returns a unique resource name that contains the run's name."""
    return f"slipway-{_word(run)}-{secrets.token_hex(4)}"


def labels(cluster_key: str, run: str) -> dict[str, str]:
    """Returns labels that identify the slices when this machine's record of them is lost."""
    return {CREATED_BY: "slipway", OF_CLUSTER: cluster_label(cluster_key), OF_RUN: _word(run)}


def cluster_label(cluster_key: str) -> str:
    """Returns a label per cluster file, user and machine: several users may share a project."""
    whose = f"{os.getuid()}@{socket.gethostname()}:{cluster_key}"
    return hashlib.sha256(whose.encode()).hexdigest()[:32]


def _word(run: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:LONGEST_NAME] or "run"


def node_ids(resource_id: str, slices: int) -> list[str]:
    """Returns the ids of the slices in rank order. The API itself numbers several slices."""
    return [resource_id] if slices == 1 else [f"{resource_id}-{n}" for n in range(slices)]


def request(
    wanted: TpuRequest, resource_id: str, public_key: str, labels: Mapping[str, str]
) -> "tpu_v2.QueuedResource":
    """Returns one queued resource for all slices: Cloud TPU grants all of them or none.

    `public_key` is the SSH key that the hosts accept.
    """
    from google.cloud import tpu_v2
    from google.protobuf import duration_pb2

    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(
        parent=wanted.where.parent, node=_node(wanted, f"{wanted.user}:{public_key}", labels)
    )
    if wanted.slices == 1:
        spec.node_id = resource_id
    else:
        spec.multislice_params = tpu_v2.QueuedResource.Tpu.NodeSpec.MultisliceParams(
            node_count=wanted.slices, node_id_prefix=resource_id
        )
    resource = tpu_v2.QueuedResource(tpu=tpu_v2.QueuedResource.Tpu(node_spec=[spec]))
    settings = wanted.settings
    if settings.spot:
        resource.spot = tpu_v2.QueuedResource.Spot()
    elif settings.reservation:
        resource.guaranteed = tpu_v2.QueuedResource.Guaranteed()
        resource.reservation_name = _reservation(wanted, settings.reservation)
    if settings.queue_timeout_min is not None:
        limit = duration_pb2.Duration(seconds=round(60 * settings.queue_timeout_min))
        resource.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(valid_until_duration=limit)
    return resource


def _node(wanted: TpuRequest, ssh_keys: str, labels: Mapping[str, str]) -> "tpu_v2.Node":
    """Returns the specification of one slice."""
    from google.cloud import tpu_v2

    settings = wanted.settings
    node = tpu_v2.Node(
        accelerator_type=wanted.accelerator_type,
        runtime_version=wanted.runtime_version,
        network_config=tpu_v2.NetworkConfig(
            network=settings.network or "",
            subnetwork=settings.subnetwork or "",
            enable_external_ips=not settings.internal_ips,
        ),
        labels={**settings.labels, **labels},
        metadata={"ssh-keys": ssh_keys},
    )
    if settings.service_account:
        node.service_account = tpu_v2.ServiceAccount(
            email=settings.service_account,
            scope=["https://www.googleapis.com/auth/cloud-platform"],
        )
    if settings.reservation:
        node.scheduling_config = tpu_v2.SchedulingConfig(reserved=True)
    return node


def _reservation(wanted: TpuRequest, name: str) -> str:
    return name if "/" in name else f"{wanted.where.parent}/reservations/{name}"
