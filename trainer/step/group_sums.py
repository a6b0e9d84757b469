"""Sums over several micro-batches where `data` splits their rows: each group adds up its own.

The groups along `data` lie on different slices. Summing the gradients of every micro-batch over
them would send gradients across the network once per micro-batch. So each group keeps its own until
the last micro-batch, and the network carries one sum per step.
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
    """Returns `sums(weights, batch)` of each group's rows, added up over the groups.

    `sums` returns totals and gradients. Groups exchange gradients in `dtype`.
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
