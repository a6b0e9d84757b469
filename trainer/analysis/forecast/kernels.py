"""The time of kernels of attention and of experts, for which the compiler gives no estimate."""

import math
import re
from dataclasses import dataclass

from trainer.analysis.hlo import ARRAY, Instruction
from trainer.contract.estimates.forecast import EXPERTS_SHARE, RATES
from trainer.contract.planning.accelerators import Accelerator
from trainer.contract.planning.chips import TPUS

NAME = re.compile(r"splash_m[hq]a_(fwd|dkv|dq)")
BLOCK = re.compile(r'\\?"(block_\w+)\\?": (\d+)')
OPERANDS = re.compile(r"operand_layout_constraints=\{(.*?)\}, frontend_attributes")
COST = re.compile(r'"cost_estimate":\{"flops":"(\d+)",.*?"bytes_accessed":"(\d+)"')
PRODUCTS = {"fwd": 2, "dkv": 4, "dq": 3}
"""Matrix products of a pair of blocks: scores and values; with their gradients in the others."""
FUSED_PRODUCTS = 5
"""Products of the kernel that computes all three gradients at once."""
GRADIENTS = 3
"""Results in the compute type of that kernel; all others have one or two."""
SHARE_OF_PEAK = 0.8
"""Share of the peak that the kernels reach when the head dim fills the matrix units.

Three rows of docs/published that set constants agree on it: with the cycles of products of costs.py
and less what they need not recompute, MaxText's Llama 3.1 8B on v6e-256 gives 0.79, 70B on v6e-128
0.81, and its 16B on v5e-256 0.85.
"""


@dataclass(frozen=True)
class AttentionKernel:
    """A call of JAX's splash kernel."""

    scores: int
    """Pairs of positions, of all heads and rows, in blocks that the mask does not skip."""
    head_dim: float
    """Mean of the width of queries and keys, and that of values."""
    products: int

    def seconds(self, chip: Accelerator) -> float:
        """Returns the seconds on one device.

        Each product contracts over the head dim or results in it, so a head dim smaller than the
        side of the matrix units leaves a part of them idle.
        """
        assert chip.peak_bf16_flops
        filled = min(1.0, self.head_dim / TPUS[chip.generation].matrix_side)
        flops = 2 * self.products * self.scores * self.head_dim
        return flops / (SHARE_OF_PEAK * filled * chip.peak_bf16_flops)


def attention(call: Instruction) -> AttentionKernel | None:
    """Returns the kernel that a custom call runs; None when it is not one of attention.

    With fewer queries than keys, the queries are an early and a late chunk: those of the first
    device along `context` stand for all.
    """
    name, operands = NAME.search(call.name), OPERANDS.search(call.attributes)
    if name is None or operands is None:
        return None
    shapes = [(dtype, _dims(dims)) for dtype, dims in ARRAY.findall(operands[1])]
    masks = [dims for dtype, dims in shapes if dtype == "s8"]
    arrays = [dims for dtype, dims in shapes if dtype == "bf16"]
    if not masks or len(arrays) < 2:
        return None
    *outer, length, key_dim = arrays[0]
    head_dim = (key_dim + arrays[:3][-1][-1]) / 2
    queries, seen = masks[-1][-2:]
    keys = arrays[1][-2]
    blocks = {key: int(size) for key, size in BLOCK.findall(call.attributes)}
    block = blocks.get("block_kv" if name[1] == "fwd" else f"block_kv_{name[1]}", 512)
    own = math.ceil(length / queries) if queries else length
    early = [(at + 1) * own for at in range(queries - queries // 2)]
    late = [keys - at * own for at in range(queries // 2)]
    active = sum(min(math.ceil(position / block), seen) for position in (*early, *late))
    gradients = [dtype for dtype, _ in ARRAY.findall(call.shape)].count("bf16")
    products = FUSED_PRODUCTS if gradients == GRADIENTS else PRODUCTS[name[1]]
    return AttentionKernel(math.prod(outer) * active * own * min(block, keys), head_dim, products)


@dataclass(frozen=True)
class GroupedProduct:
    """A call of JAX's kernel for products of groups of rows, as it counts itself."""

    flops: int
    """FLOPs of all rows, whether or not they belong to a group."""
    bytes_moved: int
    """Bytes read from HBM and written there; tiles are read again and again."""

    def seconds(self, chip: Accelerator, share: float) -> float:
        """Returns the seconds on one device, on which a share of the rows belong to a group."""
        assert chip.peak_bf16_flops and chip.hbm_bytes_per_s
        reached = RATES[chip.generation].products * EXPERTS_SHARE * chip.peak_bf16_flops
        return share * max(self.flops / reached, self.bytes_moved / chip.hbm_bytes_per_s)


def grouped_product(call: Instruction) -> GroupedProduct | None:
    """Returns the kernel that a custom call runs; None when it is not one of grouped products."""
    cost = COST.search(call.attributes)
    if cost is None or "gmm" not in call.op_name:
        return None
    return GroupedProduct(int(cost[1]), int(cost[2]))


def _dims(text: str) -> list[int]:
    return [int(dim) for dim in text.split(",") if dim]
