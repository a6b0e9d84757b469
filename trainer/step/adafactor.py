"""Adafactor: keeps only the row and column sums of a matrix's squared gradients.

Algorithm 4 of the paper, which has no momentum, with the decay of its section 7 and the clipping of
its section 6. The learning rate is the job's, not one relative to the parameter's size.

Rows and columns have sums, as in the paper; optax has means. Elements that have had no gradient do
not count in the clipping. Rows that pad a vocabulary thus change nothing and stay zero, whatever
their number.

References:
    Adafactor: https://arxiv.org/abs/1804.04235
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from trainer.contract.planning.optimizer_state import Matrix, sides
from trainer.model import Params

DECAY_POWER = 0.8
"""Exponent of the decay: update t keeps 1 - t ** -0.8 of the mean."""
LARGEST_RMS = 1.0
"""Upper bound of the root mean square of a matrix's update."""
TINY = 1e-30
"""The paper's first epsilon, added to the estimated mean squares, not to each squared gradient."""


class AdafactorState(NamedTuple):
    """Moving means of squared gradients by parameter name, in float32; summed dims have size 1.

    A matrix (m, n) has `rows` (m, 1) and `columns` (1, n). A parameter that is not a matrix has all
    its elements in `rows`, and nothing in `columns`.
    """

    updates: jax.Array
    rows: Params
    columns: Params


def scale_by_adafactor(axes: Mapping[str, Sequence[str]]) -> optax.GradientTransformation:
    """Returns the rule for the direction of parameters with these logical axes, by name."""
    dims = {name: sides(of) for name, of in axes.items()}

    def init(params: Any) -> AdafactorState:
        zeros = {name: jnp.zeros_like(value) for name, value in params.items()}
        rows, columns = _summed(zeros, dims)
        return AdafactorState(jnp.zeros([], jnp.int32), rows, columns)

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Params, AdafactorState]:
        del params
        count = state.updates + 1
        decay = 1 - count.astype(jnp.float32) ** -DECAY_POWER
        squares = _summed({name: step**2 for name, step in updates.items()}, dims)
        rows, columns = (
            {name: decay * kept[name] + (1 - decay) * now[name] for name in kept}
            for kept, now in zip((state.rows, state.columns), squares, strict=True)
        )
        steps = {
            name: _step(step, dims[name], rows[name], columns.get(name))
            for name, step in updates.items()
        }
        return steps, AdafactorState(count, rows, columns)

    return optax.GradientTransformation(init, update)


def _summed(arrays: Params, dims: Mapping[str, Matrix]) -> tuple[Params, Params]:
    """Returns the sums over the columns of each row, and over the rows of each column."""
    rows, columns = dict(arrays), {}
    for name, array in arrays.items():
        if dims[name].is_one:
            rows[name] = jnp.sum(array, dims[name].columns, keepdims=True)
            columns[name] = jnp.sum(array, dims[name].rows, keepdims=True)
    return rows, columns


def _step(step: jax.Array, dims: Matrix, rows: jax.Array, columns: jax.Array | None) -> jax.Array:
    """Divides a gradient by its root mean square, as rows and columns estimate it, and clips it."""
    squares, inner = rows, (*dims.rows, *dims.columns)
    if columns is not None:
        squares = rows * (columns / (jnp.sum(rows, dims.rows, keepdims=True) + TINY))
    step = step * jax.lax.rsqrt(squares + TINY)
    count = jnp.sum(squares > 0, inner, keepdims=True)
    mean = jnp.sum(step**2, inner, keepdims=True) / jnp.maximum(count, 1)
    return step / jnp.maximum(1.0, jnp.sqrt(mean) / LARGEST_RMS)
