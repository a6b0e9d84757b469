"""Shapes and sizes of the optimizer state: moments, and the moving average of the weights."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from trainer.contract.config.optimizer import Optimizer
from trainer.contract.planning import sharding_rules
from trainer.contract.planning.array_plans import DTYPE_BYTES, FLOAT32_BYTES
from trainer.contract.planning.parameter_shapes import STACKED
from trainer.contract.planning.plan import ArrayPlan, Plan


class Matrix(NamedTuple):
    """The dims of an array of stacked matrices: stacked dims, rows and columns."""

    stacked: tuple[int, ...]
    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def is_one(self) -> bool:
        """Whether the array holds matrices: a vector has no rows, or no columns."""
        return bool(self.rows and self.columns)


def sides(axes: Sequence[str]) -> Matrix:
    """Splits a parameter's dims: rows are features or an adapter's rank, columns the rest."""
    dims = range(len(axes))
    stacked = tuple(dim for axis in STACKED for dim in dims if axes[dim] == axis)
    side = "rank" if "rank" in axes else "embed"
    rows = tuple(dim for dim in dims if axes[dim] == side)
    return Matrix(stacked, rows, tuple(dim for dim in dims if dim not in (*stacked, *rows)))


def matrix(axes: Sequence[str]) -> Matrix | None:
    """Returns the matrix dims of a weight between a layer's features or of an adapter, else None.

    The vocabulary's weights do not count as matrices: each row belongs to one token, and tokens
    occur one by one.
    """
    found = sides(axes)
    return found if "layer" in axes and found.is_one else None


def bytes_per_device(optimizer: Optimizer, plan: Plan) -> int:
    """Returns the bytes of a device's part of the state, offloaded moments included.

    It is sharded like the parameters; dims that are summed away are not split.
    """
    return _bytes(optimizer, plan, plan.mesh)


def offloaded_bytes(optimizer: Optimizer, plan: Plan) -> int:
    """Returns the bytes of the moments that a device has in the memory of its host.

    CPU devices have no memory of their own, so they offload none.
    """
    if plan.world.on_cpu or not optimizer.offload_moments:
        return 0
    return sum(_moments_bytes(optimizer, array, plan.mesh) for array in plan.trained)


def moved_bytes(optimizer: Optimizer, plan: Plan) -> int:
    """Returns the bytes of offloaded moments that a device holds at most, beyond gradients.

    Those of a parameter go back while the next ones come. The gradients of parameters that were
    updated before leave room: see trainer/step/update.py.
    """
    if not offloaded_bytes(optimizer, plan):
        return 0
    most = before = free = 0
    for array in sorted(plan.trained, key=lambda array: math.prod(array.shape)):
        own = _moments_bytes(optimizer, array, plan.mesh)
        most, before = max(most, before + own - free), own
        free += array.bytes_per_device
    return most


def bytes_in_all(optimizer: Optimizer, plan: Plan) -> int:
    """Returns the bytes of the whole state, each element counted once, as in a checkpoint."""
    return _bytes(optimizer, plan, dict.fromkeys(plan.mesh, 1))


def _bytes(optimizer: Optimizer, plan: Plan, mesh: Mapping[str, int]) -> int:
    mean = 0 if optimizer.ema_decay is None else FLOAT32_BYTES
    return sum(
        _moments_bytes(optimizer, array, mesh) + mean * _size(array.shape, array, mesh)
        for array in plan.trained
    )


def _moments_bytes(optimizer: Optimizer, array: ArrayPlan, mesh: Mapping[str, int]) -> int:
    each = DTYPE_BYTES[optimizer.moments_dtype]
    return sum(each * _size(shape, array, mesh) for shape in moments(optimizer, array))


def moments(optimizer: Optimizer, array: ArrayPlan) -> list[tuple[int, ...]]:
    """Returns the shapes of the moments that an optimizer keeps for a parameter."""
    if optimizer.name == "adafactor":
        dims = sides(array.axes)
        summed = (dims.columns, dims.rows) if dims.is_one else ((),)
        return [tuple(1 if d in gone else n for d, n in enumerate(array.shape)) for gone in summed]
    has_one = optimizer.name == "lion" or (optimizer.name == "muon" and matrix(array.axes))
    return [array.shape] * (1 if has_one else 2)


def _size(shape: tuple[int, ...], array: ArrayPlan, mesh: Mapping[str, int]) -> int:
    """Returns the elements on a device of an array that is sharded like its parameter."""
    parts = (
        sharding_rules.parts(entry, mesh) if size == whole else 1
        for size, whole, entry in zip(shape, array.shape, array.spec, strict=True)
    )
    return math.prod(shape) // math.prod(parts)
