"""The layers of one round on a stage, which has those of all rounds.

The letters of dims are those of trainer/model/__init__.py. Each tick chooses the weights of its
round. If JAX differentiated that, every tick would keep a copy of them for the backward pass, which
here chooses them again.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

OfRound = Callable[[jax.Array, Any, jax.Array, Any], tuple[jax.Array, Any]]
"""Function (residual stream, layers of all rounds, round, arrays of the micro-batch) -> (residual
stream, results)."""


@jax.tree_util.register_static
@dataclass(frozen=True)
class _Weight:
    """Takes the place of a weight in what the backward pass needs."""

    number: int
    """Its place among the leaves of the layers."""


def of_round(stage: Callable[..., tuple[jax.Array, Any]], rounds: int) -> OfRound:
    """Returns a function that applies `stage` with the layers of one round.

    The layers have a leading dim for the round.
    """

    def chosen(layers_cx: Any, number: jax.Array) -> Any:
        at = 0 if rounds == 1 else number
        return jax.tree.map(
            lambda x_cx: jax.lax.dynamic_index_in_dim(x_cx, at, keepdims=False), layers_cx
        )

    def apply(x_BSD: jax.Array, layers_cx: Any, number: jax.Array, own: Any) -> Any:
        return stage(x_BSD, chosen(layers_cx, number), own)

    def forward(x_BSD: jax.Array, layers_cx: Any, number: jax.Array, own: Any) -> Any:
        layers = chosen(layers_cx, number)
        result, backward = jax.vjp(lambda x_BSD, layers: stage(x_BSD, layers, own), x_BSD, layers)
        number_of = {id(leaf): at for at, leaf in enumerate(jax.tree.leaves(layers))}
        without_weights = jax.tree.map(
            lambda leaf: _Weight(number_of[id(leaf)]) if id(leaf) in number_of else leaf, backward
        )
        return result, (without_weights, layers_cx, number)

    def backward(kept: Any, gradients: Any) -> Any:
        without_weights, layers_cx, number = kept
        weights = jax.tree.leaves(chosen(layers_cx, number))
        of_stage = jax.tree.map(
            lambda leaf: weights[leaf.number] if isinstance(leaf, _Weight) else leaf,
            without_weights,
            is_leaf=lambda leaf: isinstance(leaf, _Weight),
        )
        x_gradient_BSD, of_layers = of_stage(gradients)

        def placed(x_cx: jax.Array, gradient: jax.Array) -> jax.Array | None:
            if not jnp.issubdtype(x_cx.dtype, jnp.floating):
                return None
            zeros_cx = jnp.zeros_like(x_cx)
            return jax.lax.dynamic_update_index_in_dim(zeros_cx, gradient, number, 0)

        return x_gradient_BSD, jax.tree.map(placed, layers_cx, of_layers), None, None

    if rounds == 1:
        return apply
    applied = jax.custom_vjp(apply)
    applied.defvjp(forward, backward)
    return applied
