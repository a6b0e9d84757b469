"""The private symbols of Ray that Slipway uses; tested with Ray 2.60.

Each function imports what it returns, so that this module is light.
tests/architecture/test_private.py fails when one of them disappears.
"""

from collections.abc import Callable, Mapping
from typing import Any


def import_node() -> None:
    """Imports what `start_node` needs, for all forks of this process."""
    from ray._common.usage import usage_lib  # noqa: F401
    from ray._private import node, parameter  # noqa: F401


def start_node(parameters: Mapping[str, Any], *, is_head: bool) -> None:
    """Starts the processes of a node, as `ray start` does, and waits until it is up.

    `parameters`: of Ray's `RayParams`. The processes end with this one, whatever ends it.
    """
    from ray._private.parameter import RayParams

    # A driver does not look for its node at 127.0.0.1 either.
    ip = services().resolve_ip_for_localhost(parameters["node_ip_address"])
    node_class()(RayParams(**{**parameters, "node_ip_address": ip}), head=is_head)


def services() -> Any:
    """The module by which a node finds and starts processes."""
    from ray._private import services

    return services


def utils() -> Any:
    """The module that looks for what a dashboard needs."""
    from ray._private import utils

    return utils


def node_class() -> Any:
    """The class that starts the processes of one node."""
    from ray._private.node import Node

    return Node


def modules_that_retry() -> list[Any]:
    """The modules in which a starting node sleeps before it looks for its head again."""
    from ray._private import node

    return [node, utils()]


def worker() -> Any:
    """The module of the driver's connection."""
    from ray._private import worker

    return worker


def state() -> Any:
    """The module of global state: actors and draining nodes."""
    from ray._private import state

    return state


def available_resources_per_node() -> Callable[[], dict[str, dict[str, float]]]:
    """The function that maps node ids to their free resources."""
    from ray._private.state import available_resources_per_node

    return available_resources_per_node


def gcs_client(address: str) -> Any:
    """A client of the GCS at HOST:PORT, which needs no driver."""
    from ray._raylet import GcsClient  # type: ignore[attr-defined]

    return GcsClient(address=address)


def node_selector(node_id: str) -> Any:
    """The value of `node_selectors` by which a GCS client looks for one node, by its hex id."""
    from ray.core.generated.gcs_service_pb2 import GetAllNodeInfoRequest  # type: ignore[attr-defined]

    return GetAllNodeInfoRequest.NodeSelector(node_id=bytes.fromhex(node_id))


def token_loader() -> Any:
    """The loader that keeps the first token that this process has read."""
    from ray._raylet import AuthenticationTokenLoader  # type: ignore[attr-defined]

    return AuthenticationTokenLoader.instance()


def cluster_namespace() -> bytes:
    """The namespace of the metadata that a cluster keeps of itself."""
    from ray._private import ray_constants

    return ray_constants.KV_NAMESPACE_CLUSTER


def alive_nodes_filter() -> Any:
    """The value of `state_filter` by which a GCS client lists only nodes that are alive."""
    from ray.core.generated.gcs_pb2 import GcsNodeInfo  # type: ignore[attr-defined]

    return GcsNodeInfo.GcsNodeState.ALIVE
