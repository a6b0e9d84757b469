"""Whole slices, or nothing: the hosts of a Ray cluster that a gang gets. Imports Ray late."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher import inventory
from launcher.inventory import SLICE_LABEL, WORKER_LABEL
from launcher.outcome import host_name, missing_workers
from launcher.providers.errors import ProviderError
from launcher.providers.hosts import Hosts
from launcher.providers.simulated import Place
from launcher.ray_calls import bounded
from trainer.spec import accelerators
from trainer.spec.plan import World

POD_TYPE_LABEL, NODE_LABEL = "ray.io/tpu-pod-type", "ray.io/node-id"
LOOK_S = 0.1
STATE_TIMEOUT_S = 60.0
TAKE_TIMEOUT_S = 10.0
"""For Ray to place a group on hosts that are alive and idle: after that others are tried."""


@dataclass(frozen=True)
class Host:
    """A Ray node that is alive, by what its labels say."""

    group: str
    """Of a TPU host, its slice; of others, ""."""
    number: int
    """Of a TPU host, its worker id in the slice; of others, its place among the hosts."""
    idle: bool = True
    node_id: str = ""
    address: str = ""

    @property
    def place(self) -> Place:
        return self.group, self.number


class Reservation:
    """Hosts held in a placement group; bundle p is process p's host."""

    def __init__(
        self,
        group: Any,
        bundle: dict[str, float],
        hosts: Sequence[Host],
        release: Callable[[], None],
    ) -> None:
        self.hosts = hosts
        """In the order of processes: by slice, and in it by TPU worker id."""
        self.placement_group = group
        self.bundle = bundle
        self.release = release

    @property
    def places(self) -> list[Place]:
        return [host.place for host in self.hosts]

    def nodes(self) -> frozenset[str]:
        """Ray's ids of the nodes that hold it: a host that was replaced is another node."""
        return frozenset(self._node_of_bundle().values())

    def check_order(self) -> None:
        """Raises ProviderError where Ray put a bundle on another node than the one asked for.

        On TPU `jax.process_index()` comes from the slice, not from the number that is passed.
        """
        nodes = self._node_of_bundle()
        for process, host in enumerate(self.hosts):
            if nodes.get(process) != host.node_id:
                raise ProviderError(
                    f"Ray put {host_name(process)} on node {nodes.get(process)}, not on "
                    f"{host.node_id}: processes would not be in the order of the TPU's workers"
                )

    def _node_of_bundle(self) -> dict[int, str]:
        from ray.util import placement_group_table

        group = self.placement_group
        table = bounded("asking for nodes", STATE_TIMEOUT_S, lambda: placement_group_table(group))
        return table["bundles_to_node_id"]


def reserve(world: World, hosts: Hosts, timeout_s: float) -> Reservation:
    """Wait until enough of the world's hosts are alive and idle, and take them all at once.

    Hosts that Ray does not place the group on in time are left for others. Raises ProviderError
    after `timeout_s`, naming the hosts that are missing or busy.
    """
    deadline = time.monotonic() + timeout_s
    failed = ""
    while True:
        alive = _usable_hosts(world, hosts)
        chosen, problem = choose(alive, world.slices, world.hosts_per_slice, hosts.avoided)
        if chosen is not None:
            reservation = bounded("reserving", STATE_TIMEOUT_S, lambda c=chosen: _take(world, c))
            wait_s = min(TAKE_TIMEOUT_S, max(LOOK_S, deadline - time.monotonic()))
            if _is_placed(reservation, wait_s):
                return reservation
            hosts.avoid(reservation.places)
            failed = f"{_names(chosen)} could not be reserved within {wait_s:.0f} s: "
            failed += missing(world, hosts) or "a host is stuck, or another run was faster"
        if time.monotonic() >= deadline:
            why = "; ".join(filter(None, [failed, problem]))
            raise ProviderError(f"after {timeout_s:.0f} s, {why}{_inventory(world, hosts)}")
        time.sleep(LOOK_S)


def missing(world: World, hosts: Hosts) -> str:
    """Which of the world's hosts are not alive, in words; "": none."""
    places = [host.place for host in _alive_hosts(world, hosts)]
    return missing_workers(places, world.slices, world.hosts_per_slice)


def lost(world: World, reservation: Reservation) -> str:
    """Which of the reserved hosts Ray does not hold for alive any more, in words; "": none."""
    alive = {node["NodeID"] for node in _nodes() if node["Alive"]}
    places = [host.place for host in reservation.hosts if host.node_id in alive]
    return missing_workers(places, world.slices, world.hosts_per_slice)


def places(world: World, hosts: Hosts, ours: Collection[str]) -> list[Place]:
    """Of the hosts that Ray holds for alive and that nobody else uses; `ours`: nodes we hold."""
    found = _alive_hosts(world, hosts)
    return [host.place for host in found if host.idle or host.node_id in ours]


def usable(world: World, alive: Iterable[Place]) -> int:
    """How many hosts a world of this kind could have; of a TPU slice all hosts or none."""
    places = set(alive)
    if world.platform != "tpu":
        return len(places)
    workers = Counter(group for group, _ in places)
    return world.hosts_per_slice * sum(n >= world.hosts_per_slice for n in workers.values())


def choose(
    alive: Sequence[Host],
    slices: int,
    hosts_per_slice: int,
    avoided: Collection[Place] = (),
) -> tuple[list[Host] | None, str]:
    """The hosts to take, idle ones and whole slices only, in the order of processes.

    None and what is wrong where there are not enough. `avoided`: only where there are no others.
    """
    seen = [host.place for host in alive]
    problem = missing_workers(seen, slices, hosts_per_slice)
    if problem:
        return None, problem
    free: dict[str, list[Host]] = {}
    for host in alive:
        free.setdefault(host.group, []).extend([host] * host.idle)
    for name, members in free.items():
        members.sort(key=lambda host: (host.place in avoided, host.number))
        free[name] = members[:hosts_per_slice]
    idle = [name for name, members in free.items() if len(members) == hosts_per_slice]
    if len(idle) < slices:
        busy = sorted(set(free) - set(idle))
        names = f"those of {', '.join(busy)}" if any(busy) else "some of them"
        return None, f"all hosts are alive, but {names} are in use by another run"
    idle.sort(key=lambda name: (any(host.place in avoided for host in free[name]), name))
    return sorted((h for name in idle[:slices] for h in free[name]), key=lambda h: h.place), ""


def _names(chosen: Sequence[Host]) -> str:
    slices = sorted({host.group for host in chosen if host.group})
    return ", ".join(slices) or ", ".join(host.address for host in chosen)


def _is_placed(reservation: Reservation, wait_s: float) -> bool:
    """Whether Ray places the group within `wait_s`; it is given back where not."""
    deadline = time.monotonic() + wait_s
    try:
        while not reservation.placement_group.wait(LOOK_S):
            if time.monotonic() >= deadline:
                reservation.release()
                return False
        reservation.check_order()
    except BaseException:
        reservation.release()
        raise
    return True


def _usable_hosts(world: World, hosts: Hosts) -> list[Host]:
    """Alive by what Ray says, and nothing else speaks against them."""
    alive = _alive_hosts(world, hosts)
    trusted = hosts.alive(world, [host.place for host in alive])
    return [host for host in alive if host.place in trusted]


def _alive_hosts(world: World, hosts: Hosts) -> list[Host]:
    wanted, free = _resources(world), _free()
    found = [_host(node, world, hosts, wanted, free) for node in _nodes() if node["Alive"]]
    return [host for host in found if host is not None]


def _nodes() -> list[dict[str, Any]]:
    """By address: hosts that have no number of their own are numbered in this order."""
    import ray

    nodes = bounded("looking at the hosts", STATE_TIMEOUT_S, ray.nodes)
    return sorted(nodes, key=lambda node: inventory.address_order(node["NodeManagerAddress"]))


def _free() -> Mapping[str, Mapping[str, float]]:
    """Node id -> its resources that nobody has taken."""
    from ray._private.state import available_resources_per_node

    return bounded("looking at the hosts", STATE_TIMEOUT_S, available_resources_per_node)


def _host(
    node: Mapping[str, Any],
    world: World,
    hosts: Hosts,
    wanted: Mapping[str, float],
    free: Mapping[str, Mapping[str, float]],
) -> Host | None:
    """None: a node that cannot be a host of this world."""
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
    pod_type = _kind(world).ray_pod_type
    if labels.get(POD_TYPE_LABEL) != pod_type:
        return None
    head = {f"TPU-{pod_type}-head": 1.0}
    claimed = bool(head.keys() & resources.keys()) and not _has(available, head)
    idle = _has(available, wanted) and not claimed
    group, worker = labels.get(SLICE_LABEL, node_id), int(labels.get(WORKER_LABEL, 0))
    return Host(group, worker, idle, node_id, address)


def _has(available: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(available.get(name, 0) >= amount for name, amount in wanted.items())


def _resources(world: World) -> dict[str, float]:
    if world.platform == "gpu":
        return {"CPU": 1, "GPU": world.devices_per_host}
    return {"CPU": 1, "TPU": _kind(world).chips_per_host} if world.platform == "tpu" else {"CPU": 1}


def _inventory(world: World, hosts: Hosts) -> str:
    """What a cluster that is not Slipway's own has, beside what is wanted of it."""
    if hosts.shared is None:
        return ""
    wanted = inventory.of_resources(_resources(world))
    labels = dict(hosts.shared.labels)
    if world.platform == "tpu":
        labels[POD_TYPE_LABEL] = _kind(world).ray_pod_type or ""
    with_labels = "".join(f", {name}={value}" for name, value in labels.items())
    count = f"{world.processes} host{'s' * (world.processes > 1)}"
    listing = inventory.listing(_nodes(), _free())
    return f".\n  wanted: {count}, each with {wanted}{with_labels}; there are:\n{listing}"


def _take(world: World, chosen: Sequence[Host]) -> Reservation:
    """Ask Ray for a bundle on each host, in the order of processes."""
    if world.platform == "tpu":
        return _take_slices(world, chosen)
    from ray.util.placement_group import placement_group, remove_placement_group

    bundle = _resources(world)
    group = placement_group(
        [bundle] * world.processes,
        strategy="STRICT_SPREAD",
        bundle_label_selector=[{NODE_LABEL: host.node_id} for host in chosen],
    )
    return Reservation(group, bundle, chosen, lambda: remove_placement_group(group))


def _take_slices(world: World, chosen: Sequence[Host]) -> Reservation:
    """Named slices: Ray then claims no head first, a task on the pod that costs 1.5 s."""
    from ray.util.tpu import SlicePlacementGroup

    kind = _kind(world)
    group = SlicePlacementGroup(
        topology="x".join(map(str, kind.topology or ())),
        accelerator_version=kind.ray_generation or "",
        chips_per_vm=kind.chips_per_host,
        num_slices=world.slices,
        strategy="STRICT_SPREAD",
        bundle_label_selector=[_selector(host) for host in chosen],
    )
    return Reservation(group.placement_group, group.bundle_resources, chosen, group.shutdown)


def _selector(host: Host) -> dict[str, str]:
    """A slice of one host may have no name: it is then called by its node."""
    named = {} if host.group == host.node_id else {SLICE_LABEL: host.group}
    return {**named, NODE_LABEL: host.node_id}


def _kind(world: World) -> accelerators.Accelerator:
    return accelerators.parse(
        world.accelerator, hosts=world.hosts_per_slice, devices_per_host=world.devices_per_host
    )
