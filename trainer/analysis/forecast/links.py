"""The time of a collective on the links of a torus, or on the network between slices.

References:
    Austin et al., "How to Scale Your Model", 2025, https://jax-ml.github.io/scaling-book/tpus:
    a link carries 0.9 of its specified bandwidth, and a hop takes about a microsecond.
"""

import math

import numpy as np

from trainer.analysis.hlo import Instruction
from trainer.analysis.replica_groups import Places
from trainer.contract.planning import accelerators, mesh_layout
from trainer.contract.planning.plan import Plan

LINK_SHARE = 0.9
"""Share of a link's specified bandwidth that a collective gets."""
HOP_S = 1e-6
"""Latency of a hop between neighbours."""
NETWORK_S = 100e-6
"""Latency of a message between slices: an assumption."""
CHIP_NETWORK_BYTES_PER_S = 3.125e9
"""A chip's share of its host's network where it is unknown: that of a v5e."""
WHOLE_SIDE = {"v5e": 16, "v6e": 16, "v2": 16, "v3": 32}
"""Length of a side at which the flat torus of a generation closes; other sides are open."""
NO_AXIS = "none"
EVEN = 0.5
"""Least share of a permute's pairs that count up when it goes forward."""
CUBE_SIDE = 4
"""Sides of three-dimensional tori close if all of them are multiples of this ("TPU v5p")."""


class Links:
    """The links of a plan's devices."""

    def __init__(self, plan: Plan):
        world = plan.world
        self._chip = accelerators.parse(world.accelerator)
        self._places = Places(plan)
        self._topology = world.topology or ()
        per_slice = world.devices // world.slices
        coords = np.array(mesh_layout.device_coords(world)) if world.topology else None
        numbers = np.array(plan.device_order) % per_slice
        self._coords = None if coords is None else coords[numbers][:, : len(self._topology)]
        self._per_host = world.devices_per_host

    def groups(self, collective: Instruction) -> np.ndarray:
        """Returns the partitions of each group of a collective (groups, members)."""
        return self._places.groups(collective)

    def axis(self, groups: np.ndarray) -> str:
        """Returns the mesh axes that groups of partitions span; "none" for one device."""
        return self._places.axis(groups) or NO_AXIS

    def resources(self, kind: str, groups: np.ndarray) -> tuple[str, ...]:
        """Returns the links that a collective occupies: those of its axes in both directions.

        A permute occupies one direction, so two permutes can pass each other.
        """
        name = f"{'network' if self.is_network(groups) else 'links'} of {self.axis(groups)}"
        forward, backward = f"{name}, forward", f"{name}, backward"
        if kind != "collective-permute":
            return forward, backward
        return (forward,) if (groups[:, 1] > groups[:, 0]).mean() >= EVEN else (backward,)

    def is_network(self, groups: np.ndarray) -> bool:
        """Returns whether the groups span several slices."""
        return self._places.link(groups) == "dcn"

    def seconds(self, kind: str, sent_bytes: float, groups: np.ndarray) -> float:
        """Returns the seconds of a collective in which each device sends a number of bytes.

        In an exchange of all with all, a message takes half of the longest way on average, and
        uses the links of that way.
        """
        if self.is_network(groups):
            chip = self._chip.dcn_bytes_per_s
            rate = chip / self._per_host if chip else CHIP_NETWORK_BYTES_PER_S
            return sent_bytes / rate + NETWORK_S
        links, hops = self._links(groups[0], is_permute=kind == "collective-permute")
        if not links or not self._chip.ici_bytes_per_s:
            return 0.0
        each = LINK_SHARE * self._chip.ici_bytes_per_s / (2 * max(1, len(self._topology)))
        passed_on = max(1.0, hops / 2) if kind.endswith("all-to-all") else 1.0
        return passed_on * sent_bytes / (each * links) + HOP_S * hops

    def _links(self, group: np.ndarray, *, is_permute: bool) -> tuple[int, int]:
        """Returns how many of its links a device uses at once, and the hops of the longest way.

        A collective uses both directions of each side of the torus that it spans, or one if the
        side is open. A permute uses one direction.
        """
        if self._coords is None:
            return 2, 1
        found = self._coords[group]
        sides = [len(np.unique(found[:, dim])) for dim in range(found.shape[1])]
        spanned = [dim for dim, side in enumerate(sides) if side > 1]
        if not spanned:
            return 2 * len(sides), 0  # the cores of a chip
        if is_permute:
            return 1, 1
        closed = {dim for dim in spanned if sides[dim] == self._topology[dim] and self._closes(dim)}
        links = sum(2 if dim in closed else 1 for dim in spanned)
        hops = sum(sides[dim] // 2 if dim in closed else sides[dim] - 1 for dim in spanned)
        return links, hops

    def _closes(self, dim: int) -> bool:
        """Returns whether a whole side of the slice is a ring."""
        if len(self._topology) == len(("x", "y", "z")):
            return all(side % CUBE_SIDE == 0 for side in self._topology)
        return self._topology[dim] >= WHOLE_SIDE.get(self._chip.generation, math.inf)
