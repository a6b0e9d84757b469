"""A number per array that any change of a bit changes, the same on every mesh.

The sum modulo 2^32, over all elements, of a hash of the element's bits times an odd number that its
place gives. Changing one element changes the sum for certain (an odd factor has an inverse), a sum
does not depend on how the array is split, and zeros add nothing, so that padding does not count.
The hash is MurmurHash3's finalizer (Austin Appleby, public domain), which maps 0 to 0.
"""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import numpy as np

PLACES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
"""Primes of xxHash32, one for each dim."""


def digest(array: jax.Array) -> jax.Array:
    """Of an array of numbers of up to 4 bytes and up to five dims: a uint32 scalar."""
    width = np.dtype(f"uint{8 * array.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(array, width).astype(jnp.uint32)
    place = jnp.zeros(array.shape, jnp.uint32)
    for dim, prime in zip(range(array.ndim), PLACES, strict=False):
        place += jax.lax.broadcasted_iota(jnp.uint32, array.shape, dim) * jnp.uint32(prime)
    return jnp.sum(_mix(bits) * (_mix(place) | jnp.uint32(1)), dtype=jnp.uint32)


def digests(arrays: Iterable[jax.Array]) -> list[int]:
    """Of all leaves. Not as one program: on CPU it would hold a copy of all of them at once."""
    return [int(_compiled(array)) for array in arrays]


_compiled = jax.jit(digest)


def _mix(x: jax.Array) -> jax.Array:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)
