"""The request for slices, as the Cloud TPU API takes it. Pure."""

import hashlib
import os
import re
import secrets
import socket
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.providers.gcp.settings import Wanted

if TYPE_CHECKING:
    from google.cloud import tpu_v2

LONGEST_NAME = 40
CREATED_BY, OF_CLUSTER, OF_RUN = "created-by", "slipway-cluster", "slipway-run"


def new_id(run: str) -> str:
    """A name that no other resource has, and that says which run it is for."""
    return f"slipway-{_word(run)}-{secrets.token_hex(4)}"


def labels(cluster_key: str, run: str) -> dict[str, str]:
    """What slices are found by where this machine's note of them is lost."""
    return {CREATED_BY: "slipway", OF_CLUSTER: cluster_label(cluster_key), OF_RUN: _word(run)}


def cluster_label(cluster_key: str) -> str:
    """One for each cluster file, user and machine: a project may be shared with others."""
    whose = f"{os.getuid()}@{socket.gethostname()}:{cluster_key}"
    return hashlib.sha256(whose.encode()).hexdigest()[:32]


def _word(run: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:LONGEST_NAME] or "run"


def node_ids(resource_id: str, slices: int) -> list[str]:
    """Of its slices, in rank order. Several are numbered by the API itself."""
    return [resource_id] if slices == 1 else [f"{resource_id}-{n}" for n in range(slices)]


def request(
    wanted: Wanted, resource_id: str, public_key: str, labels: Mapping[str, str]
) -> "tpu_v2.QueuedResource":
    """All slices as one queued resource: all of them are had, or none.

    `public_key`: what the hosts let the user in with.
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
    if settings.valid_minutes is not None:
        limit = duration_pb2.Duration(seconds=round(60 * settings.valid_minutes))
        resource.queueing_policy = tpu_v2.QueuedResource.QueueingPolicy(valid_until_duration=limit)
    return resource


def _node(wanted: Wanted, ssh_keys: str, labels: Mapping[str, str]) -> "tpu_v2.Node":
    """One slice."""
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


def _reservation(wanted: Wanted, name: str) -> str:
    return name if "/" in name else f"{wanted.where.parent}/reservations/{name}"
