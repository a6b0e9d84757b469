"""What each instruction of a compiled TPU step occupies, and for how long.

The compiler attaches its own estimate in core cycles ("estimated_cycles") to fusions, copies and
reductions. This module adds what it leaves out: kernels, collectives and copies.
"""

import re
from functools import cache

from trainer.analysis.collectives import (
    ENDED,
    OVERLAPPING,
    PART,
    kind_of,
    operand_bytes,
    sent_bytes,
)
from trainer.analysis.forecast import kernels
from trainer.analysis.forecast.links import Links
from trainer.analysis.forecast.timeline import Cost
from trainer.analysis.hlo import Instruction, Program
from trainer.contract.estimates.forecast import (
    ATTENTION,
    COLLECTIVES,
    HOST_COPIES,
    MATRIX_PRODUCTS,
    OTHER_FUSIONS,
)
from trainer.contract.planning import accelerators
from trainer.contract.planning.parameter_shapes import exchange_places
from trainer.contract.planning.plan import Plan

CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')
TARGET = re.compile(r'custom_call_target="([^"]*)"')
SPACE = re.compile(r"S\((\d+)\)")
HOST_SPACE = "5"
"""Memory space of the host's memory in the layout of a TPU array; 1 is the core's own memory."""
SPARSE_CORES = "SparseCores"
ON_SPARSE_CORES = 'async_execution_thread="sparsecore"'
PRODUCTS = ("convolution", "dot")
REDUCED = re.compile(r"\bdimensions=\{([\d,]*)\}")
LAYOUT = re.compile(r"\]\{([\d,]+)")
VECTOR_DIMS = 2
"""Minor dims of an array, of which a TPU's vectors are parts."""
PROJECTION = re.compile(r"\battention/dot_general")
"""Scope of attention's products with weights; its other products are of queries, keys, values."""
COPIES = "waits for copies"
TO_HOST, FROM_HOST = "copies to host memory", "copies from host memory"
"""Directions of the link between a chip and its host, which can be used at the same time."""
MOVES = (
    "copy", "copy-start", "slice-start", "dynamic-slice-start", "dynamic-update-slice", "gather",
    "scatter", "fusion", "convolution", "dot", "custom-call", "reduce", "reduce-window", "sort",
    "transpose", "convert", "broadcast", "concatenate", "slice", "dynamic-slice", "pad", "select",
    "add", "multiply", "subtract", "divide",
)  # fmt: skip
"""Opcodes that read and write memory. All others are free."""
FREE_TARGETS = ("AllocateBuffer", "ConcatBitcast", "PrepareAsyncCallStart", "PrepareAsyncCallDone")
"""Custom calls that do no work."""
PRODUCT_CYCLES = {"v6e": 0.85, "v7x": 0.85}
"""Cycles of products relative to the compiler's estimate, by generation; 1 for all others.

libtpu 0.0.42 estimates the product of two 8,192 x 8,192 matrices at 70 % of the peak of a v6e, and
at 90 % of that of a v5p. Less what they need not recompute, MaxText's measurements of Llama 3.1 8B
on v6e-256 and 70B on v6e-128 together give 0.84, and the share of attention in kernels.py. With
that share, those of 70B on v7x-128 and 405B on v7x-512 give 0.93 and 0.76; with less than 0.85,
large products would exceed the peak of a v7x. All are rows of docs/published that set constants.
"""


class Costs:
    """The costs of a program's instructions on the devices of a plan."""

    def __init__(self, program: Program, plan: Plan):
        self._program = program
        self._links = Links(plan)
        chip = accelerators.parse(plan.world.accelerator)
        assert chip.clock_hz and chip.hbm_bytes_per_s and chip.host_link_bytes_per_s, "not a TPU"
        self._clock_hz = chip.clock_hz
        self._hbm_bytes_per_s = chip.hbm_bytes_per_s
        self._host_link_bytes_per_s = chip.host_link_bytes_per_s
        self._chip = chip
        devices = plan.mesh["expert"]
        is_exchange = plan.moe == "megablox_exchange"
        self._own_experts = 1 / (exchange_places(devices) if is_exchange else devices)
        """Share of the places for rows in which there are rows for a device's experts."""
        self._product_cycles = PRODUCT_CYCLES.get(chip.generation, 1.0)
        self._has_product = cache(self._find_product)
        self._collective_in = cache(self._find_collective)

    def __call__(self, computation: str, one: Instruction) -> Cost | None:
        """Returns the cost of an instruction; None when it takes no time."""
        if found := self._collective(computation, one):
            return found
        if one.opcode.endswith("-start"):
            return self._asynchronous(one)
        return self._on_core(computation, one)

    def _collective(self, computation: str, one: Instruction) -> Cost | None:
        if kind := kind_of(one, computation):
            return self._sending(computation, one, kind, on_sparse_cores=False)
        if one.opcode == "while" or not one.called or _is_piece(one):
            return None
        inner = next(filter(None, map(self._collective_in, one.called)), None)
        if inner is None:
            return None
        within, collective = inner
        kind = kind_of(collective, within)
        assert kind
        return self._sending(
            within, collective, kind, on_sparse_cores=ON_SPARSE_CORES in one.attributes
        )

    def _sending(
        self, computation: str, one: Instruction, kind: str, *, on_sparse_cores: bool
    ) -> Cost:
        groups = self._links.groups(one)
        size = operand_bytes(one, self._program.computations[computation])
        seconds = self._links.seconds(kind, sent_bytes(kind, size, groups.shape[1]), groups)
        part = COLLECTIVES.format(self._links.axis(groups))
        helpers = (SPARSE_CORES,) if on_sparse_cores else ()
        return Cost(seconds, part, self._links.resources(kind, groups) + helpers)

    def _asynchronous(self, one: Instruction) -> Cost | None:
        """Returns the cost of a copy beside the core, or of work on the SparseCores."""
        sizes = [self._size_of(one, name) for name in one.operands]
        size = max(sizes, default=0)
        if ON_SPARSE_CORES in one.attributes:
            return Cost(size / self._hbm_bytes_per_s, OTHER_FUSIONS, (SPARSE_CORES,))
        if one.opcode in ("slice-start", "dynamic-slice-start"):
            size = one.bytes - size
        elif one.opcode == "dynamic-update-slice-start":
            size = sizes[1]
        if HOST_SPACE in SPACE.findall(one.shape):
            return Cost(size / self._host_link_bytes_per_s, HOST_COPIES, (_direction(one),))
        return Cost(size / self._hbm_bytes_per_s, COPIES, ("copies",))

    def _on_core(self, computation: str, one: Instruction) -> Cost | None:
        target = TARGET.search(one.attributes)
        if one.opcode not in MOVES or (target and target[1] in FREE_TARGETS):
            return None
        part = self._part(one)
        found = CYCLES.search(one.attributes)
        if found and not self._adds_vectors(computation, one):
            share = self._product_cycles if part == MATRIX_PRODUCTS else 1.0
            return Cost(share * int(found[1]) / self._clock_hz, part)
        if target and (kernel := kernels.attention(one)):
            return Cost(kernel.seconds(self._chip), ATTENTION)
        if target and (product := kernels.grouped_product(one)):
            return Cost(product.seconds(self._chip, self._own_experts), MATRIX_PRODUCTS)
        return Cost(self._moved_bytes(computation, one) / self._hbm_bytes_per_s, part)

    def _part(self, one: Instruction) -> str:
        scopes = PART.findall(one.op_name)
        is_attention = bool(scopes) and scopes[-1] == "attention"
        is_product = one.opcode in PRODUCTS or any(map(self._has_product, one.called))
        if is_attention and not PROJECTION.search(one.op_name):
            return ATTENTION
        return MATRIX_PRODUCTS if is_product else OTHER_FUSIONS

    def _adds_vectors(self, computation: str, one: Instruction) -> bool:
        """Returns whether an instruction sums whole vectors, as over the first dim of an array.

        The compiler estimates 32 elements per cycle and core for it, in any type, which is an
        eighth of what it estimates for a fusion of the same additions: libtpu 0.0.42, for the sum
        of bfloat16 (2, 4, 8, 8192, 128) over its second dim on a v6e.
        """
        summed = self._program.computations[computation].get(next(iter(one.operands), ""))
        layout = summed and LAYOUT.search(summed.shape)
        dims = REDUCED.search(one.attributes)
        if one.opcode != "reduce" or not layout or not dims:
            return False
        return not {*dims[1].split(",")} & {*layout[1].split(",")[:VECTOR_DIMS]}

    def _moved_bytes(self, computation: str, one: Instruction) -> int:
        """Returns the bytes read and written; an update in place moves only what is new."""
        within = self._program.computations[computation]
        sizes = [within[name].bytes for name in one.operands if name in within]
        if one.opcode == "reduce":
            return one.bytes + sum(sizes)
        if one.opcode == "dynamic-update-slice":
            return 2 * sizes[1]
        return one.bytes + sum(min(size, max(one.bytes, 1)) for size in sizes)

    def _size_of(self, one: Instruction, operand: str) -> int:
        return self._program.computations[self._program.place(one)][operand].bytes

    def _find_product(self, computation: str) -> bool:
        within = self._program.computations[computation].values()
        return any(
            one.opcode in PRODUCTS or any(map(self._has_product, one.called)) for one in within
        )

    def _find_collective(self, computation: str) -> tuple[str, Instruction] | None:
        for one in self._program.computations[computation].values():
            if kind_of(one, computation):
                return computation, one
            if found := next(filter(None, map(self._collective_in, one.called)), None):
                return found
        return None


def _direction(copy: Instruction) -> str:
    """Returns the direction of a copy between a chip and its host.

    The result of a plain copy begins with its destination.
    """
    if copy.opcode == "copy-start":
        to_host = HOST_SPACE in SPACE.findall(copy.shape.split("}")[0])
    else:
        to_host = copy.opcode == "dynamic-update-slice-start"
    return TO_HOST if to_host else FROM_HOST


def _is_piece(one: Instruction) -> bool:
    """Returns whether an instruction does core work with a piece of a collective under way."""
    return any(name.startswith(OVERLAPPING) for name in one.called) or one.name.startswith(ENDED)
