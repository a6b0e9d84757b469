"""The collectives of a compiled step, with their mesh axes, links and bytes.

They are read from the optimized program, and multiplied by the trip counts of loops. The result is
what the devices will execute, not what the source code requests.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from trainer.analysis.hlo import Computation, Instruction, Program
from trainer.analysis.replica_groups import Places
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import Plan, World
from trainer.contract.protocol.reports import Collective

RAGGED = "ragged-all-to-all"
KINDS = (
    "all-gather", "all-reduce", "reduce-scatter", "all-to-all", RAGGED, "collective-permute",
)  # fmt: skip
SCATTERING = "all-reduce-scatter"
"""XLA's name for the fusion in which an all-reduce is computed as a reduce-scatter."""
OVERLAPPING = "async_collective_fusion"
STARTED, ENDED = "async-collective-start", "async-collective-done"
"""XLA's names for the parts of a collective that is fused with other work."""
REACH = 6
"""Maximum distance, in instructions, from a collective to one that names its part of the model."""
HUBS = ("parameter", "tuple", "while", "constant")
"""Opcodes of instructions that are near to everything in a program: the search stops at them."""
OTHER = "other"
PARTS = (
    "embedding",
    "attention",
    "mlp",
    "norm",
    "loss",
    "clipping",
    "optimizer",
    "bookkeeping",
)
"""Scopes (`jax.named_scope`) in which the model and the step are traced."""
PART = re.compile(rf"\b({'|'.join(PARTS)})\b")
BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
"""Attribute of a send through the host: the form of a collective between slices of TPUs."""
PERMUTE_BETWEEN_SLICES = "ONE_TO_ONE"


def of(text: str, plan: Plan) -> list[Collective]:
    """Returns the collectives in the text of a compiled step, most bytes first.

    Raises ValueError when the program has something that this parser does not understand.
    """
    program, places = Program(text), Places(plan)
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
        each = sent_bytes(one.kind, one.operand_bytes, groups.shape[1])
        sums[purpose] = count + times, sent + times * each
    rates = _bytes_per_s(plan.world)
    found = []
    for purpose, (count, sent) in sums.items():
        rate = rates[purpose.link]
        found.append(Collective(*purpose, count, sent, sent / rate if rate else None))
    return sorted(found, key=lambda one: -one.bytes)


def _bytes_per_s(world: World) -> dict[str, float | None]:
    """Returns the bytes/s of a device by link, None if unknown; devices share a host's network."""
    chip = accelerators.parse(world.accelerator)
    network = chip.dcn_bytes_per_s
    return {
        "ici": chip.ici_bytes_per_s,
        "dcn": network / world.devices_per_host if network else None,
    }


class _Purpose(NamedTuple):
    """The first fields of a Collective, which are the key for summing."""

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
    """Yields the number of times that a step runs each collective, and the collective."""
    for name, computation in program.computations.items():
        caller = program.caller(name)
        if not program.runs[name] or _goes_on(name, caller):
            continue
        for one in computation.values():
            if kind := kind_of(one, name):
                is_started = one.opcode.endswith(("-start", "send")) or _is_start(caller)
                scope = _scope(program, name, one)
                size = operand_bytes(one, computation)
                yield program.runs[name], _Found(one, kind, scope, is_started, size)


def _goes_on(computation: str, caller: Instruction | None) -> bool:
    """Returns whether collectives in this computation were started in another one.

    A collective that is fused with overlapping work appears in the program once for its start, once
    for each part of that work, and once for its end.
    """
    return computation.startswith(OVERLAPPING) or _is_named(caller, ENDED)


def _is_start(caller: Instruction | None) -> bool:
    """Returns whether `caller` starts asynchronous work: a fusion, or work on the SparseCore."""
    return caller is not None and (
        caller.name.startswith(STARTED) or caller.opcode.endswith("-start")
    )


def _scope(program: Program, computation: str, one: Instruction) -> str:
    """Returns the path of scopes in which a collective was traced.

    If the compiler lost it, the path is that of the loop around it, followed by that of the nearest
    instruction with a path that reads or feeds it.
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


def kind_of(instruction: Instruction, computation: str) -> str | None:
    """Returns the kind of a collective in a computation, by name; None for other instructions."""
    kind = instruction.opcode.removesuffix("-start")
    if kind == "send" and (between := BETWEEN_SLICES.search(instruction.attributes)):
        if between[1] == PERMUTE_BETWEEN_SLICES:
            return "collective-permute"
        kind = between[1].lower().replace("_", "-")
    if kind == "all-reduce" and computation.startswith(SCATTERING):
        return "reduce-scatter"
    return kind if kind in KINDS else None


def operand_bytes(collective: Instruction, within: Computation) -> int:
    """Returns the bytes of a collective's operands.

    How many rows a ragged exchange sends is known only when it runs. Even loads of experts fill the
    smaller one of its first two operands, the rows to send and the place of those received.
    """
    sizes = [within[name].bytes for name in collective.operands if name in within]
    return min(sizes[:2]) if collective.opcode.startswith(RAGGED) else sum(sizes)


def _part(scope: str) -> str:
    found = PART.findall(scope)
    return found[-1] if found else OTHER


def sent_bytes(kind: str, operand: int, members: int) -> int:
    """Returns the bytes that a device sends in total, in a ring of `members` devices.

    The formulas are those of `_ici_bytes` in trainer/contract/estimates/roofline.py.
    """
    if kind == "collective-permute":
        return operand
    if kind == "all-gather":
        return operand * (members - 1)
    return (2 if kind == "all-reduce" else 1) * operand * (members - 1) // members
