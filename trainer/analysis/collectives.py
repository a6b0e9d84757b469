"""The collectives of a compiled step: along which mesh axis, over which wires, how many bytes.

Read from the program after the compiler's optimizations, loops multiplied in, so that it is what
the devices will do, and not what was asked for.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from trainer.analysis.hlo import Instruction, Program
from trainer.contract.planning import accelerators, sharding_rules
from trainer.contract.planning.plan import Plan, World

KINDS = ("all-gather", "all-reduce", "reduce-scatter", "all-to-all", "collective-permute")
SCATTERING = "all-reduce-scatter"
"""What XLA calls the fusion in which an all-reduce is computed as a reduce-scatter."""
OVERLAPPING = "async_collective_fusion"
STARTED, ENDED = "async-collective-start", "async-collective-done"
"""What XLA calls the parts of a collective that is fused with other work."""
REACH = 6
"""Instructions between a collective and one that says what part of the model it is for."""
HUBS = ("parameter", "tuple", "while", "constant")
"""What everything in a program is near to."""
OTHER = "other"
PARTS = (
    "embedding",
    "attention",
    "feed_forward",
    "norm",
    "loss",
    "clipping",
    "optimizer",
    "bookkeeping",
)
"""The scopes that the model and the step are traced in (`jax.named_scope`)."""
PART = re.compile(rf"\b({'|'.join(PARTS)})\b")
BRACES = re.compile(r"\{([\d,]+)\}")
LISTED = re.compile(r"replica_groups=(\{\{.*?\}\})")
COUNTED = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
MESHED = re.compile(r"replica_groups=mesh\[([^]]*)\](?:, device_ids=\(([^)]*\)?)\))? \{([^}]*)\}")
PAIRS = re.compile(r"source_target_pairs=(\{\{.*?\}\})")
BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
"""Of a send through the host, which is how a TPU's program has a collective between slices."""


@dataclass(frozen=True)
class Collective:
    """All of one kind, for one purpose. Of one step; bytes are those that a device sends."""

    kind: str
    part: str
    """Of the model or the step; `other` where the program does not say."""
    backward: bool
    axis: str
    """Mesh axes that it goes over, as "fsdp" or "data+fsdp"."""
    link: str
    """`ici`, over the links of an island (a slice of TPUs, a host of GPUs), or `dcn`, between."""
    overlapped: bool
    """Whether it is started and awaited apart, with other work between."""
    count: int
    bytes: int
    seconds: float | None
    """At least, over all links of a device at once; None: their bandwidth is not known."""


def of(text: str, plan: Plan) -> list[Collective]:
    """The collectives in the text of a compiled step, the most bytes first.

    Raises ValueError where the program has something that is not understood.
    """
    program, places = Program(text), _Places(plan)
    sums: dict[_Purpose, tuple[int, int]] = {}
    for times, one in _instructions(program):
        groups = places.groups(one.instruction)
        purpose = _Purpose(
            one.kind,
            _part(one.scope),
            "transpose(" in one.scope,
            places.axis(groups),
            places.link(groups),
            one.overlapped,
        )
        count, sent = sums.get(purpose, (0, 0))
        each = _sent(one.kind, one.operand_bytes, groups.shape[1])
        sums[purpose] = count + times, sent + times * each
    rates = _bytes_per_s(plan.world)
    found = []
    for purpose, (count, sent) in sums.items():
        rate = rates[purpose.link]
        found.append(Collective(*purpose, count, sent, sent / rate if rate else None))
    return sorted(found, key=lambda one: -one.bytes)


def _bytes_per_s(world: World) -> dict[str, float | None]:
    """Link -> what a device can send over it; a host's network is shared by its devices."""
    chip = accelerators.parse(world.accelerator)
    network = chip.dcn_bytes_per_s
    return {
        "ici": chip.ici_bytes_per_s,
        "dcn": network / world.devices_per_host if network else None,
    }


class _Purpose(NamedTuple):
    """The first fields of a Collective, by which they are summed."""

    kind: str
    part: str
    backward: bool
    axis: str
    link: str
    overlapped: bool


class _Found(NamedTuple):
    instruction: Instruction
    kind: str
    scope: str
    overlapped: bool
    operand_bytes: int


def _instructions(program: Program) -> Iterator[tuple[int, _Found]]:
    """How often a step runs each collective, and that."""
    for name, computation in program.computations.items():
        caller = program.caller(name)
        if not program.runs[name] or _goes_on(name, caller):
            continue
        for one in computation.values():
            if kind := _kind(one, name):
                is_started = one.opcode.endswith(("-start", "send")) or _is_start(caller)
                scope = _scope(program, name, one)
                size = sum(computation[operand].bytes for operand in one.operands)
                yield program.runs[name], _Found(one, kind, scope, is_started, size)


def _goes_on(computation: str, caller: Instruction | None) -> bool:
    """Whether a collective in it is one that was started elsewhere.

    Fused with the work that it overlaps with, it stands in the program once for its start, once for
    each part of that work, and once for its end.
    """
    return computation.startswith(OVERLAPPING) or _is_named(caller, ENDED)


def _is_start(caller: Instruction | None) -> bool:
    """Of work beside other work: of a fusion, or on the SparseCore."""
    return caller is not None and (
        caller.name.startswith(STARTED) or caller.opcode.endswith("-start")
    )


def _scope(program: Program, computation: str, one: Instruction) -> str:
    """The path of scopes that a collective was traced in.

    Where the compiler lost it: that of the nearest instruction which reads or feeds it and has one,
    below the path of the loop around it.
    """
    caller = program.caller(computation)
    if PART.search(one.op_name):
        return one.op_name
    around = caller.op_name if caller else ""
    if caller and caller.opcode != "while" and not PART.search(around):
        return _scope(program, program.place(caller), caller)
    return f"{around}/{one.op_name}/{_nearest_scope(program, computation, one.name)}"


def _nearest_scope(program: Program, computation: str, name: str) -> str:
    within = program.computations[computation]
    seen, edge = {name}, [name]
    for _ in range(REACH):
        edge = [near for far in edge for near in program.neighbours(computation, far)]
        edge = [near for near in dict.fromkeys(edge) if near not in seen]
        for near in edge:
            if PART.search(within[near].op_name):
                return within[near].op_name
        seen |= {*edge}
        edge = [near for near in edge if within[near].opcode not in HUBS]
    return ""


def _is_named(caller: Instruction | None, name: str) -> bool:
    return caller is not None and caller.name.startswith(name)


class _Places:
    """Where a program's partitions stand: it numbers them in the mesh's order."""

    def __init__(self, plan: Plan):
        self.sizes = tuple(plan.mesh[axis] for axis in sharding_rules.MESH_AXES)
        world = plan.world
        islands = world.slices if world.platform == "tpu" else world.processes
        self.island = np.array(plan.device_order) // (world.devices // islands)

    def groups(self, instruction: Instruction) -> np.ndarray:
        """(groups, members): partitions that work together; of a permute, all that send and get."""
        text = instruction.attributes
        if instruction.opcode == "send":
            slices = [np.flatnonzero(self.island == island) for island in np.unique(self.island)]
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
        return np.arange(self.island.size)[None]  # none named: all of them

    def axis(self, groups: np.ndarray) -> str:
        """The mesh axes along which members of a group differ."""
        coordinates = np.stack(np.unravel_index(groups, self.sizes))
        differ = (coordinates != coordinates[:, :, :1]).any(axis=(1, 2))
        return "+".join(
            a for a, is_one in zip(sharding_rules.MESH_AXES, differ, strict=True) if is_one
        )

    def link(self, groups: np.ndarray) -> str:
        islands = self.island[groups]
        return "dcn" if (islands != islands[:, :1]).any() else "ici"


def _kind(instruction: Instruction, computation: str) -> str | None:
    kind = instruction.opcode.removesuffix("-start")
    if kind == "send" and (between := BETWEEN_SLICES.search(instruction.attributes)):
        kind = between[1].lower().replace("_", "-")
    if kind == "all-reduce" and computation.startswith(SCATTERING):
        return "reduce-scatter"
    return kind if kind in KINDS else None


def _part(scope: str) -> str:
    found = PART.findall(scope)
    return found[-1] if found else OTHER


def _sent(kind: str, operand: int, members: int) -> int:
    """By a device, in a ring of so many: what passes each link once it is round."""
    if kind == "collective-permute":
        return operand
    if kind == "all-gather":
        return operand * (members - 1)
    return (2 if kind == "all-reduce" else 1) * operand * (members - 1) // members


def _braces(text: str) -> np.ndarray:
    return np.array([_numbers(group) for group in BRACES.findall(text)])


def _counted(dims: Sequence[int], order: Sequence[int]) -> np.ndarray:
    """0, 1, 2, ... in the shape `dims`, its dims then in that order."""
    return np.arange(np.prod(dims)).reshape(dims).transpose(order or range(len(dims)))


def _meshed(axes: str, devices: str | None, used: str) -> np.ndarray:
    """Groups over the named axes of a mesh that XLA made up: `'a'=4,'b'=2` over `'b'`.

    An axis can be used in part: `'a':(2)4` is its 4 middle ones, with 2 before them.
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
