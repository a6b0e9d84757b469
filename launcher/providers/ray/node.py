"""A Ray node of this machine: how it is started, and whether it is up.

Imported by every node: neither this module nor what it imports may take time to import.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

NODE_IS_UP = "Ray runtime started."
RETRY_S = 0.05
"""Time between two attempts of a node to reach its head or its raylet. In Ray: 1 or 2 s."""


@dataclass(frozen=True)
class NodeSpec:
    """How to start a Ray node. `node_starter.py` receives it as JSON."""

    name: str
    is_head: bool
    parameters: dict[str, Any]
    """Ray's `RayParams`, which the options of `ray start` set."""
    folder: str
    """Folder of this node alone: raylets in one folder conflict over a socket."""
    environment: dict[str, str]
    log: str
    after: tuple[str, int] | None
    """Address and port of the head to wait for; None for the head."""
    has_agents: bool = False
    """Whether Ray's own agents and API server run, which Slipway does not need."""


def is_up(node: NodeSpec) -> bool:
    """Returns whether the node's own log reports it as up."""
    return NODE_IS_UP in text_of(node.log)


def text_of(path: str | Path) -> str:
    """Returns the text of a file, or "" if it cannot be read."""
    try:
        return Path(path).read_text(errors="replace")
    except OSError:
        return ""
