"""Tensors in MXFP4, which read as floats: 4-bit numbers in blocks of 32 that share a scale.

NAME_blocks   uint8 (experts, outputs, inputs / 32, 16): two numbers per byte, the low half first
NAME_scales   uint8 (experts, outputs, inputs / 32): exponents of two, plus 127

References:
    OCP Microscaling Formats (MX) Specification 1.0, sections 5.3.3 and 5.4.1:
    https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf
"""

import numpy as np

BLOCKS, SCALES = "_blocks", "_scales"
BLOCK = 32
"""Numbers that share a scale."""
BIAS = 127
"""Bias of a scale's exponent (E8M0)."""
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
NUMBERS = np.array([*_MAGNITUDES, *(-x for x in _MAGNITUDES)], np.float32)
"""Value of each 4-bit code (E2M1)."""


def shape_of(blocks: tuple[int, ...]) -> tuple[int, ...]:
    """Returns the shape of the tensor, (experts, inputs, outputs), from that of its blocks."""
    experts, outputs, count, _ = blocks
    return experts, count * BLOCK, outputs


def blocks_of(inputs: slice) -> tuple[slice, slice]:
    """Returns the blocks that hold a range of inputs, and the range inside these blocks."""
    first, last = inputs.start // BLOCK, -(-inputs.stop // BLOCK)
    start = inputs.start - first * BLOCK
    return slice(first, last), slice(start, start + inputs.stop - inputs.start)


def decoded(blocks: np.ndarray, scales: np.ndarray) -> np.ndarray:
    """Returns float32 numbers (experts, inputs, outputs) of blocks and their scales."""
    numbers = np.empty((*blocks.shape[:-1], BLOCK), np.float32)
    numbers[..., 0::2], numbers[..., 1::2] = NUMBERS[blocks & 0x0F], NUMBERS[blocks >> 4]
    numbers = np.ldexp(numbers, scales.astype(np.int32)[..., None] - BIAS)
    return numbers.reshape(*blocks.shape[:2], -1).swapaxes(1, 2)
