"""Inputs of attention for tests of its kernels, and the comparison of what two of them compute."""

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np


def random_arrays(shapes: Sequence[tuple[int, ...]]) -> list[jax.Array]:
    """Random queries, keys and values of these shapes."""
    keys = jax.random.split(jax.random.key(0), len(shapes))
    return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def segments_of(length: int, ends: Sequence[Sequence[int]]) -> jax.Array:
    """The number of each position's document; `ends` are those of each row's documents."""
    positions = np.arange(length)[None, :, None]
    return jnp.array((positions >= np.array(ends)[:, None]).sum(-1), jnp.int32)


def positions_of(segments: jax.Array) -> jax.Array:
    """Positions inside of documents."""
    rows = np.asarray(segments)
    length = segments.shape[1]
    return jnp.array([np.arange(length) - np.searchsorted(row, row) for row in rows], jnp.int32)


def value_and_gradients(mix: Callable[..., jax.Array], arrays: list[jax.Array]) -> list[jax.Array]:
    """The mixed values, and the gradients of queries, keys and values."""

    def loss(*arrays: jax.Array) -> tuple[jax.Array, jax.Array]:
        mixed = mix(*arrays)
        return jnp.sum(jnp.sin(mixed.astype(jnp.float32))), mixed

    gradients, mixed = jax.jit(jax.grad(loss, argnums=(0, 1, 2), has_aux=True))(*arrays)
    return [mixed, *gradients]


def assert_close(found: list[jax.Array], wanted: list[jax.Array]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-5)
