"""The request for slices, as the Cloud TPU API takes it. Pure."""

import re
import secrets
from typing import TYPE_CHECKING

from launcher.providers.gcp.settings import Wanted

if TYPE_CHECKING:
    from google.cloud import tpu_v2

LONGEST_NAME = 40
LABELS = {"created-by": "slipway"}


def new_id(run: str) -> str:
    """A name that no other resource has, and that says which run it is for."""
    word = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")[:LONGEST_NAME] or "run"
    return f"slipway-{word}-{secrets.token_hex(4)}"


def node_ids(resource_id: str, slices: int) -> list[str]:
    """Of its slices, in rank order. Several are numbered by the API itself."""
    return [resource_id] if slices == 1 else [f"{resource_id}-{n}" for n in range(slices)]


def request(wanted: Wanted, resource_id: str, public_key: str) -> "tpu_v2.QueuedResource":
    """All slices as one queued resource: all of them are had, or none.

    `public_key`: what the hosts let the user in with.
    """
    from google.cloud import tpu_v2
    from google.protobuf import duration_pb2

    spec = tpu_v2.QueuedResource.Tpu.NodeSpec(
        parent=wanted.parent, node=_node(wanted, f"{wanted.user}:{public_key}")
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


def _node(wanted: Wanted, ssh_keys: str) -> "tpu_v2.Node":
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
        labels={**settings.labels, **LABELS},
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
    return name if "/" in name else f"{wanted.parent}/reservations/{name}"
