"""The nodes of a Ray cluster, for an error: what each has, and what of it is taken (pure)."""

import ipaddress
from collections.abc import Mapping, Sequence
from typing import Any

SHOWN = ("CPU", "GPU", "TPU")
SLICE_LABEL, WORKER_LABEL = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
MOST_LINES = 20


def listing(nodes: Sequence[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]) -> str:
    """A line for each node: its address, slice, resources, and what of them is in use."""
    alive_at = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    shown = [n for n in nodes if n["Alive"] or n["NodeManagerAddress"] not in alive_at]
    lines = [_line(node, free) for node in shown[:MOST_LINES]]
    if len(shown) > MOST_LINES:
        lines.append(f"    and {len(shown) - MOST_LINES} more")
    return "\n".join(lines)


def of_resources(resources: Mapping[str, float]) -> str:
    """`{"CPU": 1.0, "TPU": 4.0}` -> "CPU 1, TPU 4"."""
    return ", ".join(f"{k} {resources[k]:g}" for k in SHOWN if resources.get(k)) or "nothing"


def address_order(address: str) -> tuple[int, int, str]:
    """Sorts 10.0.0.9 before 10.0.0.10."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return 0, 0, address
    return parsed.version, int(parsed), address


def _line(node: Mapping[str, Any], free: Mapping[str, Mapping[str, float]]) -> str:
    labels, resources = node["Labels"], node["Resources"]
    where = f"    {node['NodeManagerAddress']}"
    if SLICE_LABEL in labels:
        where += f", {labels[SLICE_LABEL]} worker {labels.get(WORKER_LABEL, '0')}"
    if not node["Alive"]:
        return f"{where}: gone"
    available = free.get(node["NodeID"], resources)
    taken = {k: resources[k] - available.get(k, 0.0) for k in SHOWN if k in resources}
    in_use = f" (in use: {of_resources(taken)})" if any(taken.values()) else ""
    return f"{where}: {of_resources(resources)}{in_use}"
