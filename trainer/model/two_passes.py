"""A function's forward and backward pass, with arrays between them that a program can store.

The letters of dims are those of trainer/model/__init__.py. JAX's backward pass also needs what
depends on the function's other arguments only: weights, and masks or random numbers of a
micro-batch. They are not kept. The backward pass gets the same arguments, and computes them again.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

Function = Callable[..., tuple[Any, Any]]
"""Function (residual stream, weights, *others) -> (result, auxiliary results)."""


class TwoPasses(NamedTuple):
    """The passes of a function; `gradients` are those of its result."""

    forward: Callable[..., tuple[Any, Any, list[jax.Array]]]
    """Function (residual stream, weights, *others) -> (result, auxiliary results, kept)."""
    backward: Callable[..., tuple[jax.Array, Any]]
    """Function (kept, gradients, weights, *others) -> gradients of the residual stream and of the
    weights."""
    stream: jax.ShapeDtypeStruct
    """The residual stream (B, S, D)."""
    kept: list[jax.ShapeDtypeStruct]


def two_passes(
    function: Function, x_BSD: jax.ShapeDtypeStruct, weights: Any, *others: Any
) -> TwoPasses:
    """Returns the passes of a function of arrays with these shapes and dtypes."""

    def differentiated(x_BSD: jax.Array, weights: Any, *others: Any) -> Any:
        result, backward, further = jax.vjp(
            lambda x_BSD, weights: function(x_BSD, weights, *others), x_BSD, weights, has_aux=True
        )
        return result, further, backward

    def residuals(*arguments: Any) -> list[jax.Array]:
        return jax.tree.leaves(differentiated(*arguments)[-1])

    traced = jax.make_jaxpr(residuals)(x_BSD, weights, *others)
    depends = _depends_on_first(traced.jaxpr)

    def forward(*arguments: Any) -> tuple[Any, Any, list[jax.Array]]:
        result, further, backward = differentiated(*arguments)
        leaves = jax.tree.leaves(backward)
        return result, further, [leaf for leaf, keep in zip(leaves, depends, strict=True) if keep]

    def backward(kept: list[jax.Array], gradients: Any, weights: Any, *others: Any) -> Any:
        # What depends on these zeros is not used, so the compiler removes it.
        zeros_BSD = jnp.zeros(x_BSD.shape, x_BSD.dtype)
        leaves, structure = jax.tree.flatten(differentiated(zeros_BSD, weights, *others)[-1])
        left = iter(kept)
        leaves = [next(left) if keep else leaf for leaf, keep in zip(leaves, depends, strict=True)]
        return jax.tree.unflatten(structure, leaves)(gradients)

    sizes = [
        jax.ShapeDtypeStruct(one.shape, one.dtype)
        for one, keep in zip(traced.out_avals, depends, strict=True)
        if keep
    ]
    return TwoPasses(forward, backward, x_BSD, sizes)


def _depends_on_first(jaxpr: Any) -> list[bool]:
    """Returns whether each result of a program depends on its first argument."""
    found = {id(jaxpr.invars[0])}
    for equation in jaxpr.eqns:
        if not found.isdisjoint(map(id, equation.invars)):
            found.update(map(id, equation.outvars))
    return [id(one) in found for one in jaxpr.outvars]
