"""Selects the nodes of a Ray cluster that become a world's hosts. Imports Ray late.

An error lists all nodes, with the resources of each and the part that is in use.
"""

import ipaddress
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.providers.ray import private
from launcher.providers.ray.host_cluster import HostCluster
from launcher.providers.ray.node_spec import HostSlot
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World

SHOWN = ("CPU", "GPU", "TPU")
SLICE_LABEL, WORKER_LABEL = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
MOST_LINES = 20


def listing(nodes: Sequence[Mapping[str, Any]], free: Mapping[str, Mapping[str, float]]) -> str:
    """Returns a line for each node: its address, slice, resources, and the part in use."""
    alive_at = {node["NodeManagerAddress"] for node in nodes if node["Alive"]}
    shown = [n for n in nodes if n["Alive"] or n["NodeManagerAddress"] not in alive_at]
    lines = [_line(node, free) for node in shown[:MOST_LINES]]
    if len(shown) > MOST_LINES:
        lines.append(f"    and {len(shown) - MOST_LINES} more")
    return "\n".join(lines)


def of_resources(resources: Mapping[str, float]) -> str:
    """Formats `{"CPU": 1.0, "TPU": 4.0}` as "CPU 1, TPU 4"."""
    return ", ".join(f"{k} {resources[k]:g}" for k in SHOWN if resources.get(k)) or "nothing"


def address_order(address: str) -> tuple[int, int, str]:
    """Returns a sort key that puts 10.0.0.9 before 10.0.0.10."""
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


POD_TYPE_LABEL = "ray.io/tpu-pod-type"
STATE_TIMEOUT_S = 45.0
"""Less than the 60 s after which Ray ends a driver without a head, with its own message."""


@dataclass(frozen=True)
class Host:
    """A live Ray node, as its labels describe it."""

    group: str
    """The slice of a TPU host; "" for other hosts."""
    number: int
    """The worker id of a TPU host in its slice; for other hosts, the index among the hosts."""
    idle: bool = True
    node_id: str = ""
    address: str = ""
    claim: str = ""
    """The resource by which users of Ray claim a slice, on the slice's first host; else ""."""

    @property
    def place(self) -> HostSlot:
        return self.group, self.number


def missing(world: World, hosts: HostCluster) -> str:
    """Describes which of the world's hosts are not alive; returns "" when all are."""
    places = [host.place for host in _alive_hosts(world, hosts)]
    return missing_workers(places, world.slices, world.hosts_per_slice)


def places(world: World, hosts: HostCluster, ours: Collection[str]) -> list[HostSlot]:
    """Returns the slots of live hosts that are idle or in `ours`, the nodes that this run holds."""
    found = _alive_hosts(world, hosts)
    return [host.place for host in found if host.idle or host.node_id in ours]


def usable(world: World, alive: Iterable[HostSlot]) -> int:
    """Returns how many hosts a world of this kind could have; a TPU slice counts only if whole."""
    places = set(alive)
    if world.platform != "tpu":
        return len(places)
    workers = Counter(group for group, _ in places)
    return world.hosts_per_slice * sum(n >= world.hosts_per_slice for n in workers.values())


def choose(
    alive: Sequence[Host],
    slices: int,
    hosts_per_slice: int,
    avoided: Collection[HostSlot] = (),
    held: Collection[str] = (),
) -> tuple[list[Host] | None, str]:
    """Returns the hosts to take, in the order of processes: only idle hosts and whole slices.

    Returns None and the reason when they are too few. `avoided`: slots taken only as a last resort.
    `held`: ids of nodes that this run holds already; they are not idle, and are preferred.
    """
    seen = [host.place for host in alive]
    problem = missing_workers(seen, slices, hosts_per_slice)
    if problem:
        return None, problem
    free: dict[str, list[Host]] = {}
    for host in alive:
        is_free = host.idle or host.node_id in held
        free.setdefault(host.group, []).extend([host] * is_free)
    for name, members in free.items():
        members.sort(key=lambda host: (*_rank([host], avoided, held), host.number))
        free[name] = members[:hosts_per_slice]
    idle = [name for name, members in free.items() if len(members) == hosts_per_slice]
    if len(idle) < slices:
        busy = sorted(set(free) - set(idle))
        names = f"those of {', '.join(busy)}" if any(busy) else "some of them"
        return None, f"all hosts are alive, but {names} are in use by another run"
    idle.sort(key=lambda name: (*_rank(free[name], avoided, held), name))
    return sorted((h for name in idle[:slices] for h in free[name]), key=lambda h: h.place), ""


def _rank(
    members: Sequence[Host], avoided: Collection[HostSlot], held: Collection[str]
) -> tuple[bool, int]:
    """Returns a sort key for hosts that are taken together; the lowest are taken first."""
    is_avoided = any(host.place in avoided for host in members)
    return is_avoided, sum(host.node_id not in held for host in members)


def usable_hosts(world: World, hosts: HostCluster) -> list[Host]:
    """Returns hosts that Ray reports alive, minus lost ones and exited local nodes."""
    alive = _alive_hosts(world, hosts)
    trusted = hosts.usable_slots(world, [host.place for host in alive])
    return [host for host in alive if host.place in trusted]


def _alive_hosts(world: World, hosts: HostCluster) -> list[Host]:
    wanted, free = resources_of(world), _free(hosts)
    found = [
        _host(node, world, hosts, wanted, free)
        for node in all_nodes(hosts)
        if node["Alive"] and not hosts.is_quarantined(node["NodeID"])
    ]
    return [host for host in found if host is not None]


def all_nodes(hosts: HostCluster) -> list[dict[str, Any]]:
    """Returns all nodes, dead ones too, by address: hosts without a number are counted in order."""
    import ray

    nodes = hosts.call_ray("querying the hosts", STATE_TIMEOUT_S, ray.nodes)
    return sorted(nodes, key=lambda node: address_order(node["NodeManagerAddress"]))


def _free(hosts: HostCluster) -> Mapping[str, Mapping[str, float]]:
    """Returns node id -> its resources that are not in use."""
    call = private.available_resources_per_node()
    return hosts.call_ray("querying the hosts", STATE_TIMEOUT_S, call)


def _host(
    node: Mapping[str, Any],
    world: World,
    hosts: HostCluster,
    wanted: Mapping[str, float],
    free: Mapping[str, Mapping[str, float]],
) -> Host | None:
    """Returns the host on a node, or None when the node cannot be a host of this world."""
    labels, resources = node["Labels"], node["Resources"]
    node_id, address = node["NodeID"], node["NodeManagerAddress"]
    if any(resources.get(name, 0) < amount for name, amount in wanted.items()):
        return None
    number = hosts.number(node_id, labels)
    if number is None:
        return None
    available = free.get(node_id, resources)
    if world.platform != "tpu":
        return Host("", number, _has(available, wanted), node_id, address)
    pod_type = kind_of(world).ray_pod_type
    if labels.get(POD_TYPE_LABEL) != pod_type:
        return None
    claim = f"TPU-{pod_type}-head"
    claim = claim if claim in resources else ""
    idle = _has(available, wanted) and (not claim or _has(available, {claim: 1}))
    group, worker = labels.get(SLICE_LABEL, node_id), int(labels.get(WORKER_LABEL, 0))
    return Host(group, worker, idle, node_id, address, claim)


def _has(available: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(available.get(name, 0) >= amount for name, amount in wanted.items())


def resources_of(world: World) -> dict[str, float]:
    """Returns the resources that a run takes on each host."""
    if world.platform == "gpu":
        return {"CPU": 1, "GPU": world.devices_per_host}
    if world.platform == "tpu":
        return {"CPU": 1, "TPU": kind_of(world).chips_per_host}
    return {"CPU": 1}


def described(world: World, hosts: HostCluster) -> str:
    """Describes what a run needs and what the cluster has; "" for a cluster of Slipway's own."""
    if not hosts.is_external:
        return ""
    wanted = of_resources(resources_of(world))
    labels = dict(hosts.required_labels)
    if world.platform == "tpu":
        labels[POD_TYPE_LABEL] = kind_of(world).ray_pod_type or ""
    with_labels = "".join(f", {name}={value}" for name, value in labels.items())
    count = f"{world.hosts} host{'s' * (world.hosts > 1)}"
    there = listing(all_nodes(hosts), _free(hosts))
    return f".\n  needed: {count}, each with {wanted}{with_labels}; available:\n{there}"


def kind_of(world: World) -> accelerators.Accelerator:
    """Returns the accelerator of one slice of the world."""
    return accelerators.parse(
        world.accelerator, hosts=world.hosts_per_slice, devices_per_host=world.devices_per_host
    )


def missing_workers(alive: Sequence[tuple[str, int]], slices: int, hosts_per_slice: int) -> str:
    """Describes the missing hosts of each slice, given (slice, worker) of those alive.

    Returns "" when none is missing.
    """
    found: dict[str, set[int]] = {}
    for name, worker in alive:
        found.setdefault(name, set()).add(worker)
    whole = [name for name, workers in found.items() if len(workers) >= hosts_per_slice]
    if len(whole) >= slices:
        return ""
    parts = []
    for name, workers in sorted(found.items()):
        absent = sorted(set(range(hosts_per_slice)) - workers)
        if absent:
            numbers = ", ".join(map(str, absent))
            word = "worker" if name else "host"
            who = f"{word} {numbers} is" if len(absent) == 1 else f"{word}s {numbers} are"
            of_slice = f" of {name}" if name else ""
            present = f"{len(workers)} of {hosts_per_slice} hosts{of_slice} are alive"
            parts.append(f"{present}; {who} missing")
    if not found:
        return f"none of the {slices * hosts_per_slice} hosts is alive"
    if len(found) < slices:
        parts.append(f"{len(found)} of {slices} slices have a host alive")
    return "; ".join(parts)
