"""The layers of one round of a stage, which has those of all rounds.

The letters of dims are those of trainer/model/__init__.py. In each tick, a stage chooses the
weights of its round. If JAX differentiated that, every tick would keep a copy of them for the
backward pass, which here chooses them again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

Stage = Callable[[jax.Array, Any, Any], tuple[jax.Array, Any]]
"""Function (residual stream, layers, arrays of the micro-batch) -> (residual stream, results).

Layers and results have a leading dim for the layer.
"""
OfRound = Callable[[jax.Array, Any, jax.Array, Any], tuple[jax.Array, Any]]
"""Function (residual stream, layers of all rounds, the round, arrays of the micro-batch) ->
(residual stream, results). Several rounds have a dim before that for the layer."""


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Weight:
    """Takes the place of a weight in what the backward pass needs."""

    number: int
    """Its place among the leaves of the layers."""


def of_round(stage: Stage, rounds: int) -> OfRound:
    """Returns a function that applies `stage` to the layers of a round."""

    def apply(x_BSD: jax.Array, layers: Any, number: jax.Array, own: Any) -> Any:
        return stage(x_BSD, _chosen(layers, number), own)

    def forward(x_BSD: jax.Array, layers: Any, number: jax.Array, own: Any) -> Any:
        chosen = _chosen(layers, number)
        result, backward = jax.vjp(lambda x, layers: stage(x, layers, own), x_BSD, chosen)
        number_of = {id(leaf): number for number, leaf in enumerate(jax.tree.leaves(chosen))}
        without_weights = jax.tree.map(
            lambda leaf: _Weight(number_of[id(leaf)]) if id(leaf) in number_of else leaf, backward
        )
        return result, (without_weights, layers, number)

    def backward(kept: Any, gradients: Any) -> Any:
        without_weights, layers, number = kept
        weights = jax.tree.leaves(_chosen(layers, number))
        of_stage = jax.tree.map(
            lambda leaf: weights[leaf.number] if isinstance(leaf, _Weight) else leaf,
            without_weights,
            is_leaf=lambda leaf: isinstance(leaf, _Weight),
        )
        x_gradient_BSD, of_chosen = of_stage(gradients)
        of_layers = jax.tree.map(lambda x, one: _placed(x, one, number), layers, of_chosen)
        return x_gradient_BSD, of_layers, None, None

    if rounds == 1:
        return lambda x_BSD, layers, _, own: stage(x_BSD, layers, own)
    applied = jax.custom_vjp(apply)
    applied.defvjp(forward, backward)
    return applied


def _chosen(layers: Any, number: jax.Array) -> Any:
    """Returns the layers of a round."""

    def one(x_cx: jax.Array) -> jax.Array:
        return jax.lax.dynamic_index_in_dim(x_cx, number, keepdims=False)

    return jax.tree.map(one, layers)


def _placed(x_cx: jax.Array, gradient_x: jax.Array, number: jax.Array) -> jax.Array | None:
    """Returns the gradient of all rounds' layers, of which one round has any.

    Returns None for numbers of layers, which have none.
    """
    if not jnp.issubdtype(x_cx.dtype, jnp.floating):
        return None
    return jax.lax.dynamic_update_index_in_dim(jnp.zeros_like(x_cx), gradient_x, number, 0)
