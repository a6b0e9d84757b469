"""The devices of a collective: groups of partitions, the mesh axes they span, and their links."""

import re
from collections.abc import Sequence

import numpy as np

from trainer.analysis.hlo import Instruction
from trainer.contract.planning import sharding_rules
from trainer.contract.planning.plan import Plan

BRACES = re.compile(r"\{([\d,]+)\}")
LISTED = re.compile(r"replica_groups=(\{\{.*?\}\})")
COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
MESHED = re.compile(r"replica_groups=mesh\[([^]]*)\](?:, device_ids=\(([^)]*\)?)\))? \{([^}]*)\}")
BETWEEN_SLICES = re.compile(r"\{(\d+)\d{5}->(\d+)\d{5}\}")
"""Source and target of a permutation between slices: the slice, from 1, and five digits for the
device in it."""
PAIRS = re.compile(r"source_target_pairs=(\{\{.*?\}\})")


class Places:
    """Mesh axes and islands of a program's partitions, which are numbered in the mesh's order."""

    def __init__(self, plan: Plan):
        self.sizes = tuple(plan.mesh[axis] for axis in sharding_rules.MESH_AXES)
        world = plan.world
        islands = world.slices if world.platform == "tpu" else world.hosts
        self.island = np.array(plan.device_order) // (world.devices // islands)

    def groups(self, instruction: Instruction) -> np.ndarray:
        """Returns the partitions of each group (groups, members): for a permute, of each pair."""
        text = instruction.attributes
        if instruction.opcode == "send":
            slices = [np.flatnonzero(self.island == island) for island in np.unique(self.island)]
            if pairs := {(int(a), int(b)) for a, b in BETWEEN_SLICES.findall(text)}:
                of_pairs = [np.stack([slices[a - 1], slices[b - 1]], axis=1) for a, b in pairs]
                return np.concatenate(of_pairs)
            return np.stack(slices, axis=1)
        if pairs := PAIRS.search(text):
            return _braces(pairs[1])
        if listed := LISTED.search(text):
            return _braces(listed[1])
        if counted := COUNTED.search(text):
            shape, dims, order = (_numbers(words) for words in counted.groups())
            return _counted(dims, order).reshape(shape)
        if meshed := MESHED.search(text):
            return _meshed(*meshed.groups())
        return np.arange(self.island.size)[None]  # no groups: one of all partitions

    def axis(self, groups: np.ndarray) -> str:
        """Returns the mesh axes along which members of a group differ."""
        coordinates = np.stack(np.unravel_index(groups, self.sizes))
        differ = (coordinates != coordinates[:, :, :1]).any(axis=(1, 2))
        return "+".join(
            a for a, is_one in zip(sharding_rules.MESH_AXES, differ, strict=True) if is_one
        )

    def link(self, groups: np.ndarray) -> str:
        islands = self.island[groups]
        return "dcn" if (islands != islands[:, :1]).any() else "ici"


def _braces(text: str) -> np.ndarray:
    return np.array([_numbers(group) for group in BRACES.findall(text)])


def _counted(dims: Sequence[int], order: Sequence[int]) -> np.ndarray:
    """Returns 0, 1, 2, ... in the shape `dims`, transposed to `order`."""
    return np.arange(np.prod(dims)).reshape(dims).transpose(order or range(len(dims)))


def _meshed(axes: str, devices: str | None, used: str) -> np.ndarray:
    """Returns the groups over named axes of a mesh that XLA defines: `'a'=4,'b'=2` over `'b'`.

    An axis can be used in part: `'a':(2)4` is a sub-axis of size 4, after one of size 2.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'(\w+)'=(\d+)", axes)}
    numbers = np.arange(np.prod(list(sizes.values())))
    if counted := re.match(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", devices or ""):
        dims, order = (_numbers(words) for words in counted.groups())
        numbers = _counted(dims, order)
    parts: list[int] = []
    members: list[int] = []
    wanted = {name: (first, size) for name, first, size in _used_axes(used)}
    for name, size in sizes.items():
        before, own = wanted.get(name, (size, 1))
        own = own or size // before
        members.append(len(parts) + 1)
        parts += [before, own, size // before // own]
    numbers = numbers.reshape(parts)
    others = [dim for dim in range(len(parts)) if dim not in members]
    return numbers.transpose(others + members).reshape(-1, np.prod([parts[d] for d in members]))


def _used_axes(text: str) -> list[tuple[str, int, int]]:
    found = re.findall(r"'(\w+)'(?::\((\d+)\)(\d+))?", text)
    return [(name, int(first or 1), int(size or 0)) for name, first, size in found]


def _numbers(text: str | None) -> list[int]:
    return [int(word) for word in (text or "").split(",") if word]
