"""The layers of one round on each stage, which has those of all rounds.

The letters of dims are those of trainer/model/__init__.py. In each tick, every stage chooses the
weights of its round. If JAX differentiated that, every tick would keep a copy of them for the
backward pass, which here chooses them again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

AXIS = "pipeline"
Stages = Callable[[jax.Array, Any, Any], tuple[jax.Array, Any]]
"""Function (residual streams, layers of a round, arrays of micro-batches) -> (residual streams,
results), all of each stage. The layers have the dims (L / (c Y), Y)."""
OfRound = Callable[[jax.Array, Any, jax.Array, Any], tuple[jax.Array, Any]]
"""Function (residual streams, layers of all rounds, each stage's round, arrays of micro-batches) ->
(residual streams, results). The layers have the dims (c, Y, L / (c Y))."""


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Weight:
    """Takes the place of a weight in what the backward pass needs."""

    number: int
    """Its place among the leaves of the layers."""


def of_round(all_stages: Stages, rounds: int) -> OfRound:
    """Returns a function that applies `all_stages` with the layers of each stage's round."""

    def apply(x_YBSD: jax.Array, layers: Any, round_Y: jax.Array, own: Any) -> Any:
        return all_stages(x_YBSD, _chosen(layers, round_Y, rounds), own)

    def forward(x_YBSD: jax.Array, layers: Any, round_Y: jax.Array, own: Any) -> Any:
        chosen = _chosen(layers, round_Y, rounds)
        result, backward = jax.vjp(lambda x, layers: all_stages(x, layers, own), x_YBSD, chosen)
        number_of = {id(leaf): number for number, leaf in enumerate(jax.tree.leaves(chosen))}
        without_weights = jax.tree.map(
            lambda leaf: _Weight(number_of[id(leaf)]) if id(leaf) in number_of else leaf, backward
        )
        return result, (without_weights, layers, round_Y)

    def backward(kept: Any, gradients: Any) -> Any:
        without_weights, layers, round_Y = kept
        weights = jax.tree.leaves(_chosen(layers, round_Y, rounds))
        of_stages = jax.tree.map(
            lambda leaf: weights[leaf.number] if isinstance(leaf, _Weight) else leaf,
            without_weights,
            is_leaf=lambda leaf: isinstance(leaf, _Weight),
        )
        x_gradient_YBSD, of_chosen = of_stages(gradients)
        of_layers = jax.tree.map(lambda x, one: _placed(x, one, round_Y), layers, of_chosen)
        return x_gradient_YBSD, of_layers, None, None

    if rounds == 1:
        return apply
    applied = jax.custom_vjp(apply)
    applied.defvjp(forward, backward)
    return applied


def _chosen(layers: Any, round_Y: jax.Array, rounds: int) -> Any:
    """Returns the layers of each stage's round, with the layer before the stage, as loops do."""
    if rounds == 1:
        return jax.tree.map(lambda x_cYx: x_cYx[0].swapaxes(0, 1), layers)

    def of_stage(x_cx: jax.Array, number: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(x_cx, number, keepdims=False)

    of_stages = jax.vmap(of_stage, in_axes=(1, 0), out_axes=1, spmd_axis_name=AXIS)
    return jax.tree.map(lambda x_cYx: of_stages(x_cYx, round_Y), layers)


def _placed(x_cYx: jax.Array, gradient_xYx: jax.Array, round_Y: jax.Array) -> jax.Array | None:
    """Returns the gradient of all rounds' layers, of which one round has any.

    Returns None for numbers of layers, which have none.
    """
    if not jnp.issubdtype(x_cYx.dtype, jnp.floating):
        return None

    def of_stage(x_cx: jax.Array, gradient_xx: jax.Array, number: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_index_in_dim(jnp.zeros_like(x_cx), gradient_xx, number, 0)

    of_stages = jax.vmap(of_stage, in_axes=(1, 1, 0), out_axes=1, spmd_axis_name=AXIS)
    return of_stages(x_cYx, gradient_xYx, round_Y)
