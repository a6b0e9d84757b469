"""The loop over layers whose kinds repeat.

The letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from trainer.contract.config.model import Model

Body = Callable[[jax.Array, Any], tuple[jax.Array, Any]]
"""Function (residual stream, arrays of a layer) -> (residual stream, results of the layer)."""


def scan_layers(
    model: Model, body: Callable[[int | None], Body], x_BSD: jax.Array, stacked: Any
) -> tuple[jax.Array, Any]:
    """Applies all layers in turn; returns the residual stream and the stacked results.

    `body` returns the function of layers with a given sliding window. The arrays of `stacked` have
    a leading dim for the layer: for those of the model, or of a stage, which starts with a period.
    An iteration of the loop computes one period of layers, so a window is a constant of the
    program, as a TPU's attention kernel needs. Layers that are no whole period follow the loop.
    """
    period, unroll = model.layer_period, not model.scan_layers
    kinds = [body(model.window_of(layer)) for layer in range(period)]
    if period == 1:
        return jax.lax.scan(kinds[0], x_BSD, stacked, unroll=unroll)
    count = len(jax.tree.leaves(stacked)[0])
    looped = count // period * period

    def one_period(x_BSD: jax.Array, layers: Any) -> tuple[jax.Array, Any]:
        return _in_turn(kinds, x_BSD, layers)

    periods = jax.tree.map(lambda x: x[:looped].reshape(-1, period, *x.shape[1:]), stacked)
    x_BSD, results = jax.lax.scan(one_period, x_BSD, periods, unroll=unroll)
    results = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), results)
    if looped == count:
        return x_BSD, results
    rest = jax.tree.map(lambda x: x[looped:], stacked)
    x_BSD, last = _in_turn(kinds[: count - looped], x_BSD, rest)
    return x_BSD, jax.tree.map(lambda *parts: jnp.concatenate(parts), results, last)


def _in_turn(kinds: list[Body], x_BSD: jax.Array, stacked: Any) -> tuple[jax.Array, Any]:
    """Applies one layer of each kind; returns the residual stream and the stacked results."""
    results = []
    for number, kind in enumerate(kinds):
        x_BSD, result = kind(x_BSD, jax.tree.map(lambda x, n=number: x[n], stacked))
        results.append(result)
    return x_BSD, jax.tree.map(lambda *parts: jnp.stack(parts), *results)
