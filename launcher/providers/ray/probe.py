"""Queries a Ray cluster for its nodes: `python -m launcher.providers.ray.probe HOST:PORT`.

Prints one message, ClusterAnswer or ProbeFailed. Ray's own environment variables hold the token.
"""

import json
import sys
from dataclasses import dataclass
from typing import ClassVar

from launcher.core.messages import Message, encode
from launcher.providers.ray import private

TIMEOUT_S = 15.0


@dataclass(frozen=True)
class Versions:
    """Versions that must be equal in a cluster; None when the cluster does not report one."""

    ray: str | None
    python: str | None

    def __str__(self) -> str:
        return f"Ray {self.ray} on Python {self.python}"


@dataclass(frozen=True)
class ClusterNode:
    """A node of the cluster that is alive."""

    id: str
    address: str
    is_head: bool


@dataclass(frozen=True)
class ClusterAnswer(Message):
    """The nodes and versions of a cluster."""

    kind: ClassVar = "cluster"
    here: Versions
    """Versions of the probe's process."""
    there: Versions
    """Versions of the cluster."""
    nodes: list[ClusterNode]


@dataclass(frozen=True)
class ProbeFailed(Message):
    """The cluster has not answered."""

    kind: ClassVar = "failed"
    error: str
    """Type of the error."""
    reason: str


def main() -> None:
    """Prints the answer of the cluster that the command line names."""
    try:
        answer: Message = query(sys.argv[1])
    except Exception as error:
        line = next(iter(str(error).strip().splitlines()), "")
        answer = ProbeFailed(type(error).__name__, line)
    sys.stdout.write(encode(answer).decode())


def query(address: str) -> ClusterAnswer:
    """Returns the nodes and versions of a cluster. Raises Ray's error when it does not answer."""
    import ray

    client = private.gcs_client(address)
    namespace = private.cluster_namespace()
    metadata = client.internal_kv_get(b"CLUSTER_METADATA", namespace, timeout=TIMEOUT_S)
    versions = json.loads(metadata or b"{}")
    nodes = client.get_all_node_info(
        timeout=TIMEOUT_S, state_filter=private.alive_nodes_filter()
    ).values()
    return ClusterAnswer(
        here=Versions(ray.__version__, ".".join(map(str, sys.version_info[:3]))),
        there=Versions(versions.get("ray_version"), versions.get("python_version")),
        nodes=[
            ClusterNode(node.node_id.hex(), node.node_manager_address, node.is_head_node)
            for node in nodes
        ],
    )


if __name__ == "__main__":
    main()
