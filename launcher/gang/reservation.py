"""Reserves the hosts of a gang in a Ray cluster: whole slices or nothing. Imports Ray late."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from launcher.core.errors import HostError
from launcher.gang.host_selection import (
    SLICE_LABEL,
    STATE_TIMEOUT_S,
    Host,
    all_nodes,
    choose,
    described,
    kind_of,
    missing,
    resources_of,
    usable_hosts,
)
from launcher.providers.ray.host_cluster import HostCluster
from launcher.providers.ray.node_spec import HostSlot
from trainer.contract.planning.plan import World

NODE_LABEL = "ray.io/node-id"
POLL_INTERVAL_S = 0.1
TAKE_TIMEOUT_S = 10.0
"""Seconds for Ray to place a group on hosts that are alive and idle, before others are tried."""


SeatKey = tuple[str, int]
"""The id of a host's node, and the number of a process among those of the host."""


@dataclass(frozen=True)
class Seat:
    """What a run holds for a process: a place in the bundle of its host."""

    host: Host
    local: int
    """The number of the process among those of the host."""
    placement_group: Any
    bundle_index: int
    resources: Mapping[str, float]
    """What its agent takes: the first process of a host takes the whole bundle."""
    processes_per_host: int = 1

    @property
    def key(self) -> SeatKey:
        return self.host.node_id, self.local


class Reservation:
    """Hosts held in a placement group, each with one bundle."""

    def __init__(
        self,
        cluster: HostCluster,
        group: Any,
        bundle: dict[str, float],
        hosts: Sequence[Host],
        release: Callable[[], None],
        claims: Any = None,
        processes_per_host: int = 1,
    ) -> None:
        """Creates the reservation. `claims`: a second group, released with the first."""
        self.cluster = cluster
        self.hosts = hosts
        """The hosts in the order of bundles."""
        self.placement_group = group
        self.bundle = bundle
        self._release, self._claims = release, claims
        self._processes_per_host = processes_per_host

    @property
    def places(self) -> list[HostSlot]:
        return [host.place for host in self.hosts]

    @property
    def seats(self) -> list[Seat]:
        count = self._processes_per_host
        return [
            Seat(host, local, self.placement_group, index, self.bundle if local == 0 else {}, count)
            for index, host in enumerate(self.hosts)
            for local in range(count)
        ]

    def is_placed_within(self, wait_s: float) -> bool:
        """Returns whether Ray has placed all of it within `wait_s`."""
        return self.placement_group.wait(wait_s) and (
            self._claims is None or self._claims.wait(wait_s)
        )

    def release(self) -> None:
        """Releases all of it."""
        from ray.util import remove_placement_group

        self._release()
        if self._claims is not None:
            remove_placement_group(self._claims)

    def check_order(self) -> None:
        """Raises HostError when Ray placed a bundle on a node other than the requested one.

        On TPU, `jax.process_index()` comes from the slice, not from the number that is passed.
        """
        nodes = self._node_of_bundle()
        for index, host in enumerate(self.hosts):
            if nodes.get(index) != host.node_id:
                raise HostError(
                    f"Ray placed bundle {index} on node {nodes.get(index)}, not on "
                    f"{host.node_id}: processes would not be in the order of the TPU's workers"
                )

    def _node_of_bundle(self) -> dict[int, str]:
        from ray.util import placement_group_table

        group = self.placement_group
        table = self.cluster.call_ray(
            "querying the reserved nodes", STATE_TIMEOUT_S, lambda: placement_group_table(group)
        )
        return table["bundles_to_node_id"]


def reserve(
    world: World, hosts: HostCluster, timeout_s: float, held: Collection[str] = ()
) -> tuple[list[Host], Reservation | None]:
    """Waits until enough of the world's hosts are alive and idle, and takes all of them together.

    `held`: ids of nodes that this run has reserved before; they are not taken again. Returns the
    world's hosts in the order of processes (by slice, then by TPU worker id), and the reservation
    of those that were not held, or None.

    If Ray does not place the group in time, other hosts are preferred from then on. Raises
    HostError after `timeout_s`, naming the hosts that are missing or busy.
    """
    deadline = time.monotonic() + timeout_s
    failed = ""
    while True:
        alive = usable_hosts(world, hosts)
        chosen, problem = choose(alive, world.slices, world.hosts_per_slice, hosts.avoided, held)
        if chosen is not None:
            added = [host for host in chosen if host.node_id not in held]
            if not added:
                return chosen, None
            reservation = request(world, hosts, added, is_whole=len(added) == len(chosen))
            wait_s = min(TAKE_TIMEOUT_S, max(POLL_INTERVAL_S, deadline - time.monotonic()))
            if _is_placed(reservation, wait_s):
                return chosen, reservation
            hosts.deprioritize(reservation.places)
            failed = f"{_names(added)} could not be reserved within {wait_s:.0f} s: "
            failed += missing(world, hosts) or "a host is stuck, or another run took it first"
        if time.monotonic() >= deadline:
            why = "; ".join(filter(None, [failed, problem]))
            raise HostError(f"after {timeout_s:.0f} s, {why}{described(world, hosts)}")
        time.sleep(POLL_INTERVAL_S)


def request(
    world: World, hosts: HostCluster, added: Sequence[Host], *, is_whole: bool
) -> Reservation:
    """Requests hosts from Ray, which may not have placed all of them yet.

    `is_whole`: whether these are all hosts of the world, and not the rest of a slice of which the
    run holds the other hosts.
    """
    return hosts.call_ray(
        "reserving", STATE_TIMEOUT_S, lambda: _take(world, hosts, added, is_whole)
    )


def lost(seats: Mapping[int, Seat], hosts: HostCluster) -> list[int]:
    """Returns the processes whose nodes Ray no longer reports alive."""
    alive = {node["NodeID"] for node in all_nodes(hosts) if node["Alive"]}
    return [process for process, seat in seats.items() if seat.host.node_id not in alive]


def _names(chosen: Sequence[Host]) -> str:
    slices = sorted({host.group for host in chosen if host.group})
    return ", ".join(slices) or ", ".join(host.address for host in chosen)


def _is_placed(reservation: Reservation, wait_s: float) -> bool:
    """Returns whether Ray places the group within `wait_s`; releases it when not."""
    deadline = time.monotonic() + wait_s
    try:
        while not reservation.is_placed_within(POLL_INTERVAL_S):
            if time.monotonic() >= deadline:
                reservation.release()
                return False
        reservation.check_order()
    except BaseException:
        reservation.release()
        raise
    return True


def _take(world: World, hosts: HostCluster, added: Sequence[Host], is_whole: bool) -> Reservation:
    """Requests a bundle from Ray on each host, in the order of processes."""
    if world.platform == "tpu" and is_whole:
        return _take_slices(world, hosts, added)
    from ray.util.placement_group import placement_group, remove_placement_group

    bundle = resources_of(world)
    group = placement_group(
        [bundle] * len(added),
        strategy="STRICT_SPREAD",
        bundle_label_selector=[{NODE_LABEL: host.node_id} for host in added],
    )
    release = partial(remove_placement_group, group)
    count = world.processes_per_host
    return Reservation(hosts, group, bundle, added, release, _claims(added), count)


def _take_slices(world: World, hosts: HostCluster, chosen: Sequence[Host]) -> Reservation:
    """Requests slices by name: Ray then skips a task that claims each head first and costs 1.5 s.

    The heads are claimed anyway, so that no other program waits for the rest of these slices.
    """
    from ray.util.tpu import SlicePlacementGroup

    kind = kind_of(world)
    group = SlicePlacementGroup(
        topology="x".join(map(str, kind.topology or ())),
        accelerator_version=kind.ray_generation or "",
        chips_per_vm=kind.chips_per_host,
        num_slices=world.slices,
        strategy="STRICT_SPREAD",
        bundle_label_selector=[_selector(host) for host in chosen],
    )
    resources = group.bundle_resources
    return Reservation(
        hosts, group.placement_group, resources, chosen, group.shutdown, _claims(chosen)
    )


def _claims(added: Sequence[Host]) -> Any:
    """Requests the claims of the slices whose first hosts are added; None when there are none."""
    from ray.util.placement_group import placement_group

    heads = [host for host in added if host.claim]
    if not heads:
        return None
    return placement_group(
        [{host.claim: 1} for host in heads],
        strategy="STRICT_SPREAD",
        bundle_label_selector=[{NODE_LABEL: host.node_id} for host in heads],
    )


def _selector(host: Host) -> dict[str, str]:
    """Returns the labels of a host's node; a slice of one host may have no name, only a node id."""
    named = {} if host.group == host.node_id else {SLICE_LABEL: host.group}
    return {**named, NODE_LABEL: host.node_id}
