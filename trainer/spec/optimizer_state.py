"""What is kept of each parameter beside itself, and how large that is: moments, and a mean."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from trainer.spec.optimizer import Optimizer
from trainer.spec.plan import ArrayPlan, Plan
from trainer.spec.resolve import DTYPE_BYTES, FLOAT32_BYTES
from trainer.spec.shapes import STACKED


class Matrix(NamedTuple):
    """The dims of an array that holds matrices: which count them, and which are theirs."""

    stacked: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]


def matrix(axes: Sequence[str]) -> Matrix | None:
    """Of a weight between a layer's features, or of an adapter; None: it is none.

    The vocabulary's weights are none: their rows are told apart by tokens, and turn up one by one.
    """
    dims = range(len(axes))
    stacked = tuple(dim for dim in dims if axes[dim] in STACKED)
    side = "rank" if "rank" in axes else "embed"
    rows = tuple(dim for dim in dims if axes[dim] == side)
    columns = tuple(dim for dim in dims if dim not in (*stacked, *rows))
    return Matrix(stacked, rows, columns) if "layer" in axes and rows and columns else None


def bytes_per_device(optimizer: Optimizer, plan: Plan) -> int:
    """It is split over devices as its parameters are."""
    return sum(
        array.bytes_per_device // FLOAT32_BYTES * bytes_per_number(optimizer, array)
        for array in plan.trained
    )


def bytes_in_all(optimizer: Optimizer, plan: Plan) -> int:
    """Each number once, as in a checkpoint."""
    return sum(
        math.prod(array.shape) * bytes_per_number(optimizer, array) for array in plan.trained
    )


def bytes_per_number(optimizer: Optimizer, array: ArrayPlan) -> int:
    """Of a parameter: a mean of its gradients, mostly one of their squares, and its own."""
    has_one = optimizer.name == "lion" or (optimizer.name == "muon" and matrix(array.axes))
    moments = (1 if has_one else 2) * DTYPE_BYTES[optimizer.moments_dtype]
    return moments + (0 if optimizer.ema is None else FLOAT32_BYTES)
