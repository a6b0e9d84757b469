"""Moves tokens to the slots of their experts and back, by gathers alone in both passes.

The letters of dims are those of trainer/model/__init__.py. T are the tokens that choose, and Q the
slots that they choose among.

The gradient of each move is the other one: JAX's own gradient of a gather adds rows one by one. The
choices of a token are a leading dim. Next to D they would be padded to the tiles of a TPU, in which
two choices take the room of eight.
"""

from collections.abc import Iterable
from functools import reduce
from typing import NamedTuple

import jax
import jax.numpy as jnp


class Routing(NamedTuple):
    """The choice that each slot serves, and its inverse, the slot of each choice."""

    choice: jax.Array
    """(..., Q). Choice i of token t has the number t k + i."""
    is_taken: jax.Array
    """(..., Q): whether the slot serves a choice."""
    slot: jax.Array
    """(..., T, k)"""
    is_kept: jax.Array
    """(..., T, k): whether the choice has a slot."""


@jax.custom_vjp
def dispatch(x_xTD: jax.Array, routing: Routing) -> jax.Array:
    """Returns the token of each slot (..., Q, D). Slots without one are zeros."""
    return jnp.where(routing.is_taken[..., None], _of_tokens(x_xTD, routing), 0)


def _dispatch(x_xTD: jax.Array, routing: Routing) -> tuple[jax.Array, Routing]:
    return dispatch(x_xTD, routing), routing


def _dispatch_gradient(routing: Routing, gradient_xQD: jax.Array) -> tuple[jax.Array, None]:
    chosen = jnp.unstack(_of_choices(gradient_xQD, routing), axis=-3)
    return _sum(chosen).astype(gradient_xQD.dtype), None


dispatch.defvjp(_dispatch, _dispatch_gradient)


@jax.custom_vjp
def combine(x_xQD: jax.Array, weights_xTk: jax.Array, routing: Routing) -> jax.Array:
    """Returns the weighted sum of each token's slots (..., T, D). Choices without one are zeros."""
    chosen = jnp.unstack(_of_choices(x_xQD, routing), axis=-3)
    weights = jnp.unstack(weights_xTk.astype(jnp.float32)[..., None, :], axis=-1)
    return _sum(x_xTD * w_xT1 for x_xTD, w_xT1 in zip(chosen, weights, strict=True)).astype(
        x_xQD.dtype
    )


_Residuals = tuple[jax.Array, jax.Array, Routing]


def _combine(
    x_xQD: jax.Array, weights_xTk: jax.Array, routing: Routing
) -> tuple[jax.Array, _Residuals]:
    return combine(x_xQD, weights_xTk, routing), (x_xQD, weights_xTk, routing)


def _combine_gradient(
    residuals: _Residuals, gradient_xTD: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    x_xQD, weights_xTk, routing = residuals
    weights_xN = weights_xTk.reshape(*weights_xTk.shape[:-2], -1)
    weights_xQ = jnp.where(routing.is_taken, jnp.take_along_axis(weights_xN, routing.choice, -1), 0)
    of_slots_xQD = _of_tokens(gradient_xTD, routing) * weights_xQ[..., None]

    chosen_xkTD = _of_choices(x_xQD, routing).astype(jnp.float32)
    of_weights_xkT = jnp.sum(chosen_xkTD * gradient_xTD[..., None, :, :].astype(jnp.float32), -1)
    of_weights_xTk = jnp.swapaxes(of_weights_xkT, -1, -2).astype(weights_xTk.dtype)
    return of_slots_xQD, of_weights_xTk, None


combine.defvjp(_combine, _combine_gradient)


def _of_tokens(x_xTD: jax.Array, routing: Routing) -> jax.Array:
    """Returns the row of the token that each slot serves, (..., Q, D)."""
    return _rows(x_xTD, routing.choice // routing.slot.shape[-1])


def _of_choices(x_xQD: jax.Array, routing: Routing) -> jax.Array:
    """Returns the row in the slot of each choice, (..., k, T, D)."""
    slot_xkT, is_kept_xkT = (jnp.swapaxes(x, -1, -2) for x in (routing.slot, routing.is_kept))
    rows_xND = _rows(x_xQD, slot_xkT.reshape(*slot_xkT.shape[:-2], -1))
    return jnp.where(is_kept_xkT[..., None], rows_xND.reshape(*slot_xkT.shape, -1), 0)


def _sum(arrays: Iterable[jax.Array]) -> jax.Array:
    """Adds arrays in float32.

    By its compiler's estimates, a TPU reduces a leading dim ten times more slowly than it adds.
    """
    return reduce(jnp.add, (x.astype(jnp.float32) for x in arrays))


def _rows(x_xxD: jax.Array, numbers_xx: jax.Array) -> jax.Array:
    """Returns rows of `x` by number. All numbers are in bounds."""
    return jnp.take_along_axis(x_xxD, numbers_xx[..., None], axis=-2, mode="promise_in_bounds")
