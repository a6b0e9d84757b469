"""Whole slices, or nothing: the hosts of a Ray cluster that a gang gets. Imports Ray late."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.outcome import missing_workers
from launcher.providers.errors import ProviderError
from launcher.providers.simulated import HOST_LABEL, Place
from launcher.ray_calls import bounded
from trainer.spec import accelerators
from trainer.spec.plan import World

SLICE_LABEL, WORKER_LABEL = "ray.io/tpu-slice-name", "ray.io/tpu-worker-id"
POD_TYPE_LABEL = "ray.io/tpu-pod-type"
LOOK_S = 0.1
STATE_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Host:
    """A Ray node that is alive, by what its labels say."""

    group: str
    """Of a TPU host, its slice; of others, ""."""
    number: int
    """Of a TPU host, its worker id in the slice; of others, its place among the hosts."""
    idle: bool = True

    @property
    def place(self) -> Place:
        return self.group, self.number


class Reservation:
    """Hosts held in a placement group; bundle p is process p's host, at `places[p]`."""

    def __init__(
        self,
        group: Any,
        bundle: dict[str, float],
        places: Sequence[Place],
        release: Callable[[], None],
    ) -> None:
        self.places = places
        self.placement_group = group
        self.bundle = bundle
        self.release = release

    def nodes(self) -> frozenset[str]:
        """Ray's ids of the nodes that hold it: a host that was replaced is another node."""
        from ray.util import placement_group_table

        group = self.placement_group
        table = bounded("asking for nodes", STATE_TIMEOUT_S, lambda: placement_group_table(group))
        return frozenset(table["bundles_to_node_id"].values())


def reserve(
    world: World, timeout_s: float, trusted: Callable[[Collection[Place]], Collection[Place]]
) -> Reservation:
    """Wait until the world's hosts are alive and idle, and take them all at once.

    `trusted`: of places that Ray holds for alive, those that nothing else speaks against.
    Raises ProviderError after `timeout_s`, naming the hosts that are missing or busy.
    """
    deadline = time.monotonic() + timeout_s
    while True:
        alive = _alive_hosts(world)
        usable_places = trusted([host.place for host in alive])
        alive = [host for host in alive if host.place in usable_places]
        chosen, problem = choose(alive, world.slices, world.hosts_per_slice)
        if chosen is not None:
            break
        if time.monotonic() >= deadline:
            raise ProviderError(f"after {timeout_s:.0f} s, {problem}")
        time.sleep(LOOK_S)
    reservation = bounded("reserving", STATE_TIMEOUT_S, lambda: _take(world, chosen))
    while not reservation.placement_group.wait(LOOK_S):
        if time.monotonic() >= deadline:
            reservation.release()
            raise ProviderError(
                f"the hosts could not be reserved within {timeout_s:.0f} s: "
                f"{missing(world) or 'another run took them in the same moment'}"
            )
    return reservation


def missing(world: World) -> str:
    """Which of the world's hosts are not alive, in words; "": none."""
    return missing_workers(places(world), world.slices, world.hosts_per_slice)


def places(world: World) -> list[Place]:
    """Of the hosts that Ray holds for alive."""
    return [host.place for host in _alive_hosts(world)]


def usable(world: World, alive: Iterable[Place]) -> int:
    """How many hosts a world of this kind could have; of a TPU slice all hosts or none."""
    places = set(alive)
    if world.platform != "tpu":
        return len(places)
    workers = Counter(group for group, _ in places)
    return world.hosts_per_slice * sum(n >= world.hosts_per_slice for n in workers.values())


def choose(
    alive: Sequence[Host], slices: int, hosts_per_slice: int
) -> tuple[list[Place] | None, str]:
    """The hosts to take, idle ones and whole slices only, in the order of processes.

    None and what is wrong where there are not enough.
    """
    seen = [host.place for host in alive]
    problem = missing_workers(seen, slices, hosts_per_slice)
    if problem:
        return None, problem
    free: dict[str, list[int]] = {}
    for host in alive:
        free.setdefault(host.group, []).extend([host.number] * host.idle)
    idle = sorted(name for name, numbers in free.items() if len(numbers) >= hosts_per_slice)
    if len(idle) < slices:
        busy = sorted(set(free) - set(idle))
        names = f"those of {', '.join(busy)}" if any(busy) else "some of them"
        return None, f"all hosts are alive, but {names} are in use by another run"
    taken = {name: sorted(free[name])[:hosts_per_slice] for name in idle[:slices]}
    return [(name, number) for name, numbers in taken.items() for number in numbers], ""


def _alive_hosts(world: World) -> list[Host]:
    import ray
    from ray._private.state import available_resources_per_node

    wanted = _resources(world)
    nodes, free = bounded(
        "looking at the hosts",
        STATE_TIMEOUT_S,
        lambda: (ray.nodes(), available_resources_per_node()),
    )
    return [
        host
        for node in nodes
        if node["Alive"] and (host := _host(node, world, wanted, free)) is not None
    ]


def _host(
    node: Mapping[str, Any],
    world: World,
    wanted: Mapping[str, float],
    free: Mapping[str, Mapping[str, float]],
) -> Host | None:
    """None: a node that cannot be a host of this world."""
    labels, resources = node["Labels"], node["Resources"]
    if any(resources.get(name, 0) < amount for name, amount in wanted.items()):
        return None
    available = free.get(node["NodeID"], resources)
    idle = all(available.get(name, 0) >= amount for name, amount in wanted.items())
    if world.platform != "tpu":
        return Host("", int(labels[HOST_LABEL]), idle) if HOST_LABEL in labels else None
    if labels.get(POD_TYPE_LABEL) != _kind(world).ray_pod_type:
        return None
    return Host(labels[SLICE_LABEL], int(labels[WORKER_LABEL]), idle)


def _resources(world: World) -> dict[str, float]:
    if world.platform == "gpu":
        return {"CPU": 1, "GPU": world.devices_per_host}
    return {"CPU": 1, "TPU": _kind(world).chips_per_host} if world.platform == "tpu" else {"CPU": 1}


def _take(world: World, chosen: Sequence[Place]) -> Reservation:
    """Ask Ray for a bundle on each host, in the order of processes."""
    if world.platform == "tpu":
        return _take_slices(world, chosen)
    from ray.util.placement_group import placement_group, remove_placement_group

    bundle = _resources(world)
    group = placement_group(
        [bundle] * world.processes,
        strategy="STRICT_SPREAD",
        bundle_label_selector=[{HOST_LABEL: str(number)} for _, number in chosen],
    )
    return Reservation(group, bundle, chosen, lambda: remove_placement_group(group))


def _take_slices(world: World, chosen: Sequence[Place]) -> Reservation:
    """Named slices: Ray then claims no head first, a task on the pod that costs 1.5 s."""
    from ray.util.tpu import SlicePlacementGroup

    kind = _kind(world)
    group = SlicePlacementGroup(
        topology="x".join(map(str, kind.topology or ())),
        accelerator_version=kind.ray_generation or "",
        chips_per_vm=kind.chips_per_host,
        num_slices=world.slices,
        strategy="STRICT_SPREAD",
        bundle_label_selector=[
            {SLICE_LABEL: name, WORKER_LABEL: str(worker)} for name, worker in chosen
        ],
    )
    return Reservation(group.placement_group, group.bundle_resources, chosen, group.shutdown)


def _kind(world: World) -> accelerators.Accelerator:
    return accelerators.parse(
        world.accelerator, hosts=world.hosts_per_slice, devices_per_host=world.devices_per_host
    )
