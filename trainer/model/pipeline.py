"""Layers in stages on different devices, which micro-batches pass through one behind the other.

The letters of dims are those of trainer/model/__init__.py. In tick u, stage y is at place u - y of
its order of work: trainer/contract/planning/pipeline.py has the schedule. All stages run the same
program, each on its own layers (pipeline_stages.py), and a permutation passes their results on. JAX
differentiates it: the backward pass runs through the stages in reverse.

References:
    The schedule: GPipe, https://arxiv.org/abs/1811.06965
    A dim for the stage: GSPMD, section 3.3, https://arxiv.org/abs/2105.04663
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from trainer.contract.planning import pipeline
from trainer.model.pipeline_rounds import Stage, of_round
from trainer.model.pipeline_stages import AXIS, OWN, on_stages
from trainer.model.sharding import constrain, spec, stages


def in_rounds(x_Lx: jax.Array, rounds: int) -> jax.Array:
    """Returns an array of layers as stages take it: (c, L / c, ...), or itself for one round."""
    return x_Lx if rounds == 1 else x_Lx.reshape(rounds, -1, *x_Lx.shape[1:])


def through_stages(
    stage: Stage,
    x_MBSD: jax.Array,
    layers: Any,
    of_micro_batches: Any,
    *,
    rounds: int,
    unroll: bool,
) -> tuple[jax.Array, Any]:
    """Applies all layers to all micro-batches; returns the residual streams and the results.

    `layers` are those of `in_rounds`, `of_micro_batches` has a leading dim M, and the results have
    L and M.
    """
    count, micro_batches = stages(), len(x_MBSD)
    number_of_ticks, stage_Y = pipeline.ticks(count, micro_batches, rounds), jnp.arange(count)
    of_layers = 0 if rounds == 1 else 1
    apply = on_stages(of_round(stage, rounds), (OWN, of_layers, OWN, OWN), (OWN, OWN))
    # The last stage sends its results to the first one, which applies the next round to them.
    pairs = [(stage, (stage + 1) % count) for stage in range(count if rounds > 1 else count - 1)]

    def tick(before_YBSD: jax.Array, inputs: tuple[jax.Array, jax.Array]) -> Any:
        number, first_YBSD = inputs
        place_Y = jnp.clip(number - stage_Y, 0, number_of_ticks - count)
        round_Y = place_Y // count % rounds
        chosen_Y = place_Y // (count * rounds) * count + place_Y % count
        own = jax.tree.map(lambda x: of_stages(x[chosen_Y]), of_micro_batches)
        begins_Y = (stage_Y == 0) & (round_Y == 0)
        x_YBSD = where(begins_Y, first_YBSD, before_YBSD)
        x_YBSD, results = apply(x_YBSD, layers, of_stages(round_Y), own)
        x_YBSD = of_activations(x_YBSD)
        return passed_on(x_YBSD, pairs), (x_YBSD, results)

    # A copy for each stage: its gradients are summed over stages once, after the loop.
    first_MYBSD = jnp.broadcast_to(x_MBSD[:, None], (micro_batches, count, *x_MBSD.shape[1:]))
    first_MYBSD = constrain(first_MYBSD, None, "layer", "batch", "sequence", None)
    first_UYBSD = _at_places(first_MYBSD, count, rounds, number_of_ticks)
    start_YBSD = of_activations(jnp.zeros_like(first_MYBSD[0]))
    inputs = (jnp.arange(number_of_ticks), first_UYBSD)
    _, (x_UYBSD, results) = jax.lax.scan(tick, start_YBSD, inputs, unroll=unroll)

    x_MYBSD = _by_round(x_UYBSD[count - 1 :], count, micro_batches, rounds)[-1]
    last_MBSD = jnp.sum(where(stage_Y == count - 1, x_MYBSD, 0), axis=1)
    results = jax.tree.map(partial(_by_layer, stage_Y, micro_batches, rounds), results)
    return constrain(last_MBSD, None, "batch", "sequence", None), results


def where(is_chosen_Y: jax.Array, x_xYBSD: jax.Array, other: jax.Array | int) -> jax.Array:
    """Returns the activations of the chosen stages, and `other` in place of the rest."""
    return jnp.where(is_chosen_Y[:, None, None, None], x_xYBSD, other)


def of_stages(x_Yx: jax.Array) -> jax.Array:
    """Constrains small arrays of all stages: each stage has its own."""
    return constrain(x_Yx, "layer", *[None] * (x_Yx.ndim - 1))


def of_activations(x_YBSD: jax.Array) -> jax.Array:
    """Constrains activations of all stages."""
    return constrain(x_YBSD, "layer", "batch", "sequence", None)


def passed_on(x_YBSD: jax.Array, pairs: list[tuple[int, int]]) -> jax.Array:
    """Sends activations from the first to the second stage of each pair.

    A stage to which none sends gets zeros.
    """
    layout = spec(x_YBSD, "layer", "batch", "sequence", None)
    permuted = jax.shard_map(
        partial(jax.lax.ppermute, axis_name=AXIS, perm=pairs), in_specs=layout, out_specs=layout
    )
    return permuted(x_YBSD)


def _at_places(x_Mx: jax.Array, count: int, rounds: int, length: int) -> jax.Array:
    """Returns arrays of micro-batches at the places where their first rounds are; zeros elsewhere.

    Group after group of `count` micro-batches has its rounds; `length` is that of the result.
    """
    if rounds > 1:
        x_xx = _padded(x_Mx, -len(x_Mx) % count)
        of_groups = x_xx.reshape(-1, 1, count, *x_xx.shape[1:])
        later = [(0, 0), (0, rounds - 1), *[(0, 0)] * x_Mx.ndim]
        x_Mx = jnp.pad(of_groups, later).reshape(-1, *x_Mx.shape[1:])[:length]
    return _padded(x_Mx, length - len(x_Mx))


def _by_round(x_qx: jax.Array, count: int, micro_batches: int, rounds: int) -> jax.Array:
    """Returns arrays of places in the order of a stage's work by round: (c, M, ...)."""
    if rounds == 1:
        return x_qx[None]
    x_xx = _padded(x_qx, -len(x_qx) % (rounds * count))
    of_groups = x_xx.reshape(-1, rounds, count, *x_xx.shape[1:])
    x_cxx = jnp.swapaxes(of_groups, 0, 1)
    return x_cxx.reshape(rounds, -1, *x_qx.shape[1:])[:, :micro_batches]


def _padded(x: jax.Array, more: int) -> jax.Array:
    return jnp.pad(x, [(0, more), *[(0, 0)] * (x.ndim - 1)])


def _by_layer(
    stage_Y: jax.Array, micro_batches: int, rounds: int, result_UYx: jax.Array
) -> jax.Array:
    """Returns the results of all ticks, (U, Y, L / (c Y), ...), by layer and micro-batch."""
    count = len(stage_Y)
    length = len(result_UYx) - count + 1

    def of_stage(stage: jax.Array, result_Ux: jax.Array) -> jax.Array:
        result_qx = jax.lax.dynamic_slice_in_dim(result_Ux, stage, length)
        return _by_round(result_qx, count, micro_batches, rounds)

    of_stages = jax.vmap(of_stage, in_axes=(0, 1), out_axes=1, spmd_axis_name=AXIS)
    result_cYMx = of_stages(stage_Y, result_UYx)
    result_cYxM = jnp.swapaxes(result_cYMx, 2, 3)
    return result_cYxM.reshape(-1, *result_cYxM.shape[3:])
