"""Dropout whose mask depends on the example, not on the row, the process or the order of positions.

Each row has a key derived from (seed, step, example id), and each token one from that and its place
in its document; the layer and the site in the layer are folded in. The same example in the same
step has the same mask on every mesh. The letters of dims are those of trainer/model/__init__.py.

References:
    Dropout: https://jmlr.org/papers/v15/srivastava14a.html
"""

from functools import partial

import jax
import jax.numpy as jnp

EMBEDDING, ATTENTION, MLP = range(3)


def row_keys(seed: int, step: jax.Array, example_ids_xB: jax.Array) -> jax.Array:
    """Returns one random key per row, (..., B)."""
    fold_in = partial(jax.random.fold_in, jax.random.fold_in(jax.random.key(seed), step))
    for _ in example_ids_xB.shape:
        fold_in = jax.vmap(fold_in)
    return fold_in(example_ids_xB)


def token_keys(
    keys_B: jax.Array | None, segments_BS: jax.Array, positions_BS: jax.Array
) -> jax.Array | None:
    """Returns one random key per token, (B, S); None without keys of rows."""
    if keys_B is None:
        return None
    of_row = jax.vmap(jax.random.fold_in, (None, 0))
    segment_keys_BS = jax.vmap(of_row)(keys_B, segments_BS)
    return jax.vmap(jax.vmap(jax.random.fold_in))(segment_keys_BS, positions_BS)


def dropout(
    x_BSD: jax.Array, keys_BS: jax.Array | None, layer: jax.Array | int, site: int, rate: float
) -> jax.Array:
    """Drops features of `x` at `rate` and scales up the rest. Returns `x` itself without keys.

    `layer` counts from 0. `site` is one of the constants above; it gives each use of a key in a
    layer its own mask.
    """
    if keys_BS is None or rate == 0:
        return x_BSD

    def keep(key: jax.Array) -> jax.Array:
        key = jax.random.fold_in(jax.random.fold_in(key, layer), site)
        return jax.random.bernoulli(key, 1 - rate, x_BSD.shape[2:])

    return jnp.where(jax.vmap(jax.vmap(keep))(keys_BS), x_BSD / (1 - rate), 0)
