"""Layers in stages on different devices, which micro-batches pass through one behind the other.

The letters of dims are those of trainer/model/__init__.py. In tick u, stage y works on micro-batch
u - y: trainer/contract/planning/pipeline.py has the schedule. All stages run the same program, each
on its part of arrays with a dim for the stage, and a permutation passes their results on. JAX
differentiates it: the backward pass runs through the stages in reverse.

References:
    The schedule: GPipe, https://arxiv.org/abs/1811.06965
    A dim for the stage: GSPMD, section 3.3, https://arxiv.org/abs/2105.04663
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trainer.contract.planning.pipeline import ticks
from trainer.model.sharding import constrain, spec, stages

AXIS = "pipeline"
Stage = Callable[[jax.Array, Any, Any], tuple[jax.Array, Any]]
"""Function (residual stream, layers, arrays of the micro-batch) -> (residual stream, results).

Layers and results have a leading dim for the layer.
"""


def through_stages(
    stage: Stage, x_MBSD: jax.Array, layers: Any, of_micro_batches: Any, *, unroll: bool
) -> tuple[jax.Array, Any]:
    """Applies all layers to all micro-batches; returns the residual streams and the results.

    `layers` has a leading dim L, `of_micro_batches` M, and the results L and M.
    """
    count, micro_batches = stages(), len(x_MBSD)
    number_of_ticks, stage_Y = ticks(count, micro_batches), jnp.arange(count)
    weights = jax.tree.map(lambda x: x.reshape(count, -1, *x.shape[1:]), layers)
    all_stages = jax.vmap(stage, spmd_axis_name=AXIS)

    def tick(before_YBSD: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> Any:
        number, first_YBSD = inputs
        x_YBSD = _where(stage_Y == 0, first_YBSD, before_YBSD)
        chosen_Y = jnp.clip(number - stage_Y, 0, micro_batches - 1)
        own = jax.tree.map(lambda x: _of_stages(x[chosen_Y]), of_micro_batches)
        x_YBSD, results = all_stages(x_YBSD, weights, own)
        x_YBSD = _of_activations(x_YBSD)
        return _passed_on(x_YBSD), (x_YBSD, results)

    # A copy for each stage: its gradients are summed over stages once, after the loop.
    first_MYBSD = jnp.broadcast_to(x_MBSD[:, None], (micro_batches, count, *x_MBSD.shape[1:]))
    first_MYBSD = constrain(first_MYBSD, None, "layer", "batch", "sequence", None)
    idle = ((0, number_of_ticks - micro_batches), *[(0, 0)] * x_MBSD.ndim)
    inputs = (jnp.arange(number_of_ticks), jnp.pad(first_MYBSD, idle))
    start_YBSD = _of_activations(jnp.zeros_like(first_MYBSD[0]))
    _, (x_UYBSD, results) = jax.lax.scan(tick, start_YBSD, inputs, unroll=unroll)

    last_MBSD = jnp.sum(_where(stage_Y == count - 1, x_UYBSD[count - 1 :], 0), axis=1)
    results = jax.tree.map(partial(_by_layer, stage_Y, micro_batches), results)
    return constrain(last_MBSD, None, "batch", "sequence", None), results


def _where(is_chosen_Y: jax.Array, x_xYBSD: jax.Array, other: jax.Array | int) -> jax.Array:
    return jnp.where(is_chosen_Y[:, None, None, None], x_xYBSD, other)


def _of_stages(x_Yx: jax.Array) -> jax.Array:
    """Constrains small arrays of all stages: each stage has its own."""
    return constrain(x_Yx, "layer", *[None] * (x_Yx.ndim - 1))


def _of_activations(x_YBSD: jax.Array) -> jax.Array:
    return constrain(x_YBSD, "layer", "batch", "sequence", None)


def _passed_on(x_YBSD: jax.Array) -> jax.Array:
    """Sends each stage's activations to the next one; the first stage gets zeros."""
    pairs = [(stage, stage + 1) for stage in range(stages() - 1)]
    layout = spec(x_YBSD, "layer", "batch", "sequence", None)
    passed_on = jax.shard_map(
        partial(jax.lax.ppermute, axis_name=AXIS, perm=pairs), in_specs=layout, out_specs=layout
    )
    return passed_on(x_YBSD)


def _by_layer(stage_Y: jax.Array, micro_batches: int, result_UYx: jax.Array) -> jax.Array:
    """Returns the results of all ticks, (U, Y, L / Y, ...), by layer and micro-batch."""

    def of_stage(stage: jax.Array, result_Ux: jax.Array) -> jax.Array:
        return jax.lax.dynamic_slice_in_dim(result_Ux, stage, micro_batches)

    result_YMx = jax.vmap(of_stage, in_axes=(0, 1), spmd_axis_name=AXIS)(stage_Y, result_UYx)
    result_YxM = jnp.swapaxes(result_YMx, 1, 2)
    return result_YxM.reshape(-1, *result_YxM.shape[2:])
