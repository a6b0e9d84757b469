"""Dropless mixture of experts: one grouped product per matrix, without a limit on tokens.

`jax.lax.ragged_dot` multiplies the rows of each expert by its matrix. TPUs have a kernel that
computes only these rows; other platforms compute all rows for every expert.

A device gathers the tokens of the other devices along `expert` and applies its own experts to them.
The sums are scattered back. The letters of dims are those of trainer/model/__init__.py, counted per
device: E are its experts, and N the choices of its tokens.

References:
    MegaBlocks: https://arxiv.org/abs/2211.15841
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainer.model.sharding import spec


class LookUp(NamedTuple):
    """Source row of each output row; both arrays are (..., rows)."""

    row: jax.Array
    is_there: jax.Array
    """Whether the output row has a source; without one it is zeros."""


@jax.custom_vjp
def taken(x: jax.Array, look_up: LookUp, back: LookUp) -> jax.Array:
    """Returns the rows of `x` (..., rows, D) that `look_up` selects.

    The gradient is a gather by `back`, its inverse. JAX's own gradient adds rows one by one.
    """
    rows = jnp.take_along_axis(x, look_up.row[..., None], axis=-2)
    return jnp.where(look_up.is_there[..., None], rows, 0)


def _forward(
    x: jax.Array, look_up: LookUp, back: LookUp
) -> tuple[jax.Array, tuple[LookUp, LookUp]]:
    return taken(x, look_up, back), (look_up, back)


def _backward(look_ups: tuple[LookUp, LookUp], gradient: jax.Array) -> tuple[jax.Array, None, None]:
    look_up, back = look_ups
    return taken(gradient, back, look_up), None, None


taken.defvjp(_forward, _backward)


INWARD, OUTWARD = ("expert", "embed", "mlp"), ("expert", "mlp", "embed")
Activation = Callable[[jax.Array], jax.Array]


def dropless_moe(
    activation: Activation,
    x_BSD: jax.Array,
    experts_BSk: jax.Array,
    weights_BSk: jax.Array,
    inward_EDF: list[jax.Array],
    down_EFD: jax.Array,
) -> jax.Array:
    """Returns the weighted sum of the outputs of each token's experts, (B, S, D).

    The activation applies to the first inward product, which the other ones then multiply. Matrices
    have their stored layout, and rows are split over all of `BATCH_AXES`.
    """
    tokens, inward = spec(x_BSD, "batch", "sequence", None), spec(inward_EDF[0], *INWARD)
    split = jax.shard_map(
        partial(_moe_of_device, activation, inward),
        in_specs=(tokens, tokens, tokens, [inward] * len(inward_EDF), spec(down_EFD, *OUTWARD)),
        out_specs=tokens,
    )
    return split(x_BSD, experts_BSk, weights_BSk, inward_EDF, down_EFD)


def _moe_of_device(
    activation: Activation,
    inward: PartitionSpec,
    x_BSD: jax.Array,
    experts_BSk: jax.Array,
    weights_BSk: jax.Array,
    inward_EDF: list[jax.Array],
    down_EFD: jax.Array,
) -> jax.Array:
    """Computes the part of one device."""
    expert, embed, mlp = inward
    if expert:
        x_BSD, experts_BSk, weights_BSk = (
            jax.lax.all_gather(x, expert, tiled=True) for x in (x_BSD, experts_BSk, weights_BSk)
        )
    if embed:
        inward_EDF = [jax.lax.all_gather(x, embed, axis=1, tiled=True) for x in inward_EDF]
        down_EFD = jax.lax.all_gather(down_EFD, embed, axis=2, tiled=True)

    count, top_k = len(down_EFD), experts_BSk.shape[-1]
    first = jax.lax.axis_index(expert) * count if expert else 0
    sizes_E, groups, choices = _groups(experts_BSk.reshape(-1) - first, count)
    rows_ND = jnp.repeat(x_BSD.reshape(-1, x_BSD.shape[-1]), top_k, axis=0)
    grouped_ND = taken(rows_ND, groups, choices)
    hidden_NF, *rest = (jax.lax.ragged_dot(grouped_ND, x_EDF, sizes_E) for x_EDF in inward_EDF)
    hidden_NF = activation(hidden_NF)
    for other in rest:
        hidden_NF = hidden_NF * other
    fed_ND = taken(jax.lax.ragged_dot(hidden_NF, down_EFD, sizes_E), choices, groups)

    fed_BSkD = fed_ND.reshape(*experts_BSk.shape, -1)
    mixed_BSD = jnp.einsum("bskd,bsk->bsd", fed_BSkD, weights_BSk)
    if mlp:
        mixed_BSD = jax.lax.psum(mixed_BSD, mlp)
    return jax.lax.psum_scatter(mixed_BSD, expert, tiled=True) if expert else mixed_BSD


def _groups(experts_N: jax.Array, count: int) -> tuple[jax.Array, LookUp, LookUp]:
    """Returns the row counts of `count` experts, the choice of each row, and the inverse.

    Rows are sorted by expert. Choices of experts on other devices come last, as zeros.
    """
    is_own_N = (experts_N >= 0) & (experts_N < count)
    experts_N = jnp.where(is_own_N, experts_N, count)
    sizes_E = jnp.sum(experts_N[:, None] == jnp.arange(count), axis=0, dtype=jnp.int32)
    order_N = jnp.argsort(experts_N, stable=True)
    groups = LookUp(order_N, is_own_N[order_N])
    return sizes_E, groups, LookUp(jnp.argsort(order_N), is_own_N)
