"""Sends rows to the devices of their experts along a mesh axis, and the results back.

The letters of dims are those of trainer/model/__init__.py, counted per device: E are its experts,
N the choices of its tokens, and X the devices along the axis.

A device has a row for each choice of its tokens, sorted by expert. It sends a slice of them to each
expert. The rows that it receives for its own experts are numbered by expert, and by sender among
those of an expert, so grouped products need no further sorting.

How many rows a device receives is known only when the tokens have chosen. It has places for C of
them, and a pass exchanges the rows of as many numbers. Further passes follow while any device has
rows left, so no token is dropped.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from trainer.contract.planning.parameter_shapes import exchange_places
from trainer.model import grouped_products

OVERFLOW = "overflow"
"""Scope of the passes after the first one."""

Weights = TypeVar("Weights")
Experts = Callable[[Weights, jax.Array, jax.Array], jax.Array]
"""Function (weights, rows (N, D), sizes) -> (N, D) that applies a device's experts to their rows.
The rows and `sizes` are as in GroupedProduct."""


class Slices(NamedTuple):
    """The slices that all devices send, each (X, X, E): by sender, receiver and expert."""

    sizes: jax.Array
    sent_from: jax.Array
    """Number of the first row at its sender."""
    sent_to: jax.Array
    """Number of the first row at its receiver."""


Pass = Callable[[jax.Array, Slices, Any, jax.Array], jax.Array]
"""Function (number of the pass, slices, weights, rows (N, D)) -> (N, D): see `_pass`."""


Way = tuple[jax.Array, jax.Array, jax.Array, jax.Array]
"""Arguments of `jax.lax.ragged_all_to_all`, (X E) each: first rows and sizes of the slices that a
device sends, their first rows at the receivers, and sizes of those that it receives."""


class Exchange(NamedTuple):
    """What a device exchanges in a pass."""

    there: Way
    back: Way
    sizes: jax.Array
    """Number of rows of each of the device's experts, and of free places (E + 1)."""


def fed_by_others(
    experts: Experts[Weights],
    axis: str,
    weights: Weights,
    sizes_XE: jax.Array,
    rows_ND: jax.Array,
) -> jax.Array:
    """Returns the results of the experts of all devices along `axis` for this device's rows (N, D).

    `sizes_XE` are the numbers of rows for each expert.
    """
    sizes_XXE = jax.lax.all_gather(sizes_XE, axis)
    slices = Slices(sizes_XXE, _firsts(sizes_XXE, (0, 1, 2)), _firsts(sizes_XXE, (1, 2, 0)))
    devices, tile = len(sizes_XE), grouped_products.TILE[0]
    most = devices * len(rows_ND)
    places = min(most, math.ceil(exchange_places(devices) * len(rows_ND) / tile) * tile)
    one_pass = partial(_pass, experts, axis, places)
    first_ND = one_pass(jnp.zeros((), jnp.int32), slices, weights, rows_ND)
    if places == most:
        return first_ND
    received = jnp.max(jnp.sum(sizes_XXE, axis=(0, 2)))
    # All devices of the mesh make as many passes: none is ahead of others in its collectives.
    received = jax.lax.pmax(received, jax.sharding.get_abstract_mesh().axis_names)
    return _with_overflow(one_pass, first_ND, -(-received // places), slices, weights, rows_ND)


def _pass(
    experts: Experts[Weights],
    axis: str,
    places: int,
    number: jax.Array,
    slices: Slices,
    weights: Weights,
    rows_ND: jax.Array,
) -> jax.Array:
    """Returns the results of the rows of one pass, and zeros for all others (N, D)."""
    there, back, sizes = _exchange(number, slices, axis, places)
    received_CD: Any = _moved(axis, places, rows_ND, there, back)
    return _moved(axis, len(rows_ND), experts(weights, received_CD, sizes), back, there)


def _exchange(number: jax.Array, slices: Slices, axis: str, places: int) -> Exchange:
    """Returns what this device exchanges in a pass: of each slice, the rows with its numbers."""
    begin, end = number * places, (number + 1) * places
    first_XXE = jnp.clip(slices.sent_to, begin, end)
    sizes_XXE = jnp.clip(slices.sent_to + slices.sizes, begin, end) - first_XXE
    sent_from_XXE = slices.sent_from + first_XXE - slices.sent_to
    arrays, own = (sizes_XXE, sent_from_XXE, first_XXE - begin), jax.lax.axis_index(axis)
    sizes, sent_from, sent_to = (x[own].reshape(-1) for x in arrays)
    received, came_from, came_to = (x[:, own].reshape(-1) for x in arrays)
    of_experts_E = jnp.sum(sizes_XXE[:, own], axis=0)
    free = places - jnp.sum(of_experts_E, keepdims=True)
    return Exchange(
        (sent_from, sizes, sent_to, received),
        (came_to, received, came_from, sizes),
        jnp.concatenate([of_experts_E, free]),
    )


@partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _moved(axis: str, rows: int, x_xD: jax.Array, way: Way, reverse: Way) -> jax.Array:
    """Returns the rows that this device receives along `axis`, and zeros elsewhere (rows, D).

    The gradient goes the reverse way. JAX's own one exchanges the arguments again.
    """
    # The compiler stores rows to exchange in a layout in which it fills an array slowly.
    zeros = jax.lax.optimization_barrier(jnp.zeros((rows, x_xD.shape[-1]), x_xD.dtype))
    return jax.lax.ragged_all_to_all(x_xD, zeros, *way, axis_name=axis)


def _move(
    axis: str, rows: int, x_xD: jax.Array, way: Way, reverse: Way
) -> tuple[jax.Array, tuple[Way, Way, jax.Array]]:
    # An array of no elements keeps the number of rows.
    return _moved(axis, rows, x_xD, way, reverse), (way, reverse, x_xD[:, :0])


def _move_back(
    axis: str, rows: int, residuals: tuple[Way, Way, jax.Array], gradient_xD: jax.Array
) -> tuple[jax.Array, None, None]:
    way, reverse, none_x0 = residuals
    return _moved(axis, len(none_x0), gradient_xD, reverse, way), None, None


_moved.defvjp(_move, _move_back)


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _with_overflow(
    one_pass: Pass,
    first_ND: jax.Array,
    count: jax.Array,
    slices: Slices,
    weights: Any,
    rows_ND: jax.Array,
) -> jax.Array:
    """Adds the results of the passes after the first one to its results (N, D).

    The gradient repeats each pass. Nothing is kept of them, because their number is not known.
    """
    with jax.named_scope(OVERFLOW):
        return jax.lax.fori_loop(
            1, count, lambda i, x_ND: x_ND + one_pass(i, slices, weights, rows_ND), first_ND
        )


_Residuals = tuple[jax.Array, Slices, Any, jax.Array]


def _forward(
    one_pass: Pass, first_ND: jax.Array, *residuals: *_Residuals
) -> tuple[jax.Array, _Residuals]:
    return _with_overflow(one_pass, first_ND, *residuals), residuals


def _backward(
    one_pass: Pass, residuals: _Residuals, gradient_ND: jax.Array
) -> tuple[jax.Array, None, None, Any, jax.Array]:
    count, slices, *inputs = residuals

    def add(number: jax.Array, sums: list[Any]) -> list[Any]:
        _, pull_back = jax.vjp(partial(one_pass, number, slices), *inputs)
        return jax.tree.map(jnp.add, sums, [*pull_back(gradient_ND)])

    with jax.named_scope(OVERFLOW):
        weights, rows_ND = jax.lax.fori_loop(1, count, add, jax.tree.map(jnp.zeros_like, inputs))
    return gradient_ND, None, None, weights, rows_ND


_with_overflow.defvjp(_forward, _backward)


def _firsts(sizes_XXE: jax.Array, order: tuple[int, int, int]) -> jax.Array:
    """Returns the number of the first row of each slice (X, X, E).

    Rows are numbered for each index of the first dim in `order`, by the order of the others.
    """
    ordered = jnp.transpose(sizes_XXE, order)
    ends = jnp.cumsum(ordered.reshape(len(ordered), -1), axis=1).reshape(ordered.shape)
    return jnp.transpose(ends - ordered, [order.index(dim) for dim in range(len(order))])
