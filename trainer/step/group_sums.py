"""Sums over several micro-batches where `data` splits their rows: each group adds up its own.

The groups along `data` lie on different slices. If each micro-batch's gradients were summed over
them, as many times as much would cross the network between slices. So each group has gradients of
its own until the last micro-batch.
"""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainer.data.packing import Batch
from trainer.model import Params
from trainer.model.sharding import GROUPED

Totals = TypeVar("Totals")
Weights = TypeVar("Weights")


def group_sums(
    sums: Callable[[Weights, Batch], tuple[Totals, Params]],
    weights: Weights,
    batch: Batch,
    dtype: jnp.dtype,
) -> tuple[Totals, Params]:
    """Returns the sum over groups of `sums(weights, batch)`, for the rows of each.

    `sums` returns totals and gradients. `dtype` is that in which groups exchange gradients.
    """

    def of_group(weights: Weights, batch: Batch) -> tuple[Totals, Params]:
        totals, grads = sums(weights, batch)
        return jax.lax.psum(totals, GROUPED), jax.tree.map(total, grads)

    def total(grad: jax.Array) -> jax.Array:
        return jax.lax.psum(grad.astype(dtype), GROUPED).astype(grad.dtype)

    # No other axis is manual: the compiler lays out what is in a group.
    return jax.shard_map(
        of_group,
        in_specs=(PartitionSpec(), PartitionSpec(None, GROUPED)),
        out_specs=PartitionSpec(),
        axis_names={GROUPED},
        check_vma=False,
    )(weights, batch)
