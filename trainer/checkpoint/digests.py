"""The digests of arrays: one number each, which any change of a bit changes.

A digest is the same on every mesh: that of an array is the sum of those of its parts.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from trainer.checkpoint import layer_dims
from trainer.contract.records.checkpoint_metadata import CheckpointMetadata
from trainer.programs import executables

PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
"""Primes of xxHash32 (https://github.com/Cyan4973/xxHash), one per dim."""
BLOCK_BYTES = 4 << 20
"""Maximum bytes of a block of rows, except that it has at least one row. XLA on CPU holds what the
elements of a block add to a digest; without blocks, it would need as much memory as the array."""


def digest(
    array: jax.Array,
    first: Sequence[jax.Array | int] | None = None,
    saved: Sequence[int] | None = None,
) -> jax.Array:
    """Returns the digest, a uint32 scalar, of an array of up to five dims and 4 bytes a number.

    `first` is the position of its first element in a larger array, of which it is a part. The
    digest of an array is the sum of those of its parts. `saved` is the shape whose digest is meant
    if the array has its layers in other dims.

    It is the sum modulo 2^32 of each element's bits times an odd hash of its position, both mixed
    by the finalizer of MurmurHash3 (https://github.com/aappleby/smhasher).
    """
    indices = _indices(array.shape)
    if first is not None:
        indices = [at + jnp.uint32(start) for at, start in zip(indices, first, strict=True)]
    if saved is not None:
        indices = _indices_in(saved, array.shape, indices)
    return jnp.sum(_terms(array, indices), dtype=jnp.uint32)


def row_digests(array: jax.Array) -> jax.Array:
    """Returns the digest of each row along the first dim; their sum is that of the array."""
    return _row_digests(array, 1)


def row_digests_of_rounds(array: jax.Array) -> jax.Array:
    """Returns the same of an array whose rows are in two dims."""
    return _row_digests(array, 2)


def digests(arrays: Iterable[jax.Array]) -> list[int]:
    """Returns all digests, one program each: on CPU, a single program would hold copies of all.

    Each program ends before the next one begins: XLA on CPU has few threads, and the collectives of
    two programs on several devices of a process can wait for each other.
    """
    return [int(executables.call(_of_shards(array.sharding), array)) for array in arrays]


def prepare_digests(arrays: Iterable[jax.ShapeDtypeStruct]) -> None:
    """Compiles the programs of `digests` for such arrays, with shardings, and keeps them."""
    for array in arrays:
        executables.shared(_of_shards(array.sharding), array)


def part_digest(part: jax.Array, first: Sequence[int]) -> jax.Array:
    """Returns the digest of a part of an array, without waiting for it.

    `first` is the position of its first element.
    """
    return executables.call(_of_part, part, [np.uint32(position) for position in first])


def changed(flat: Mapping[str, jax.Array], about: CheckpointMetadata) -> str:
    """Returns a text that names the arrays whose digest is not the saved one; "": none."""
    as_saved, in_other_dims = [], []
    for name, array in flat.items():
        differ = layer_dims.differ(about.arrays[name].shape, array.shape)
        (in_other_dims if differ else as_saved).append(name)
    numbers = dict(zip(as_saved, digests(flat[name] for name in as_saved), strict=True))
    for name in in_other_dims:
        of_those_saved = jax.jit(partial(digest, saved=about.arrays[name].shape))
        numbers[name] = int(of_those_saved(flat[name]))
    wrong = [name for name in flat if numbers[name] != about.arrays[name].digest]
    return f"the data of {', '.join(wrong)} has changed since it was saved" if wrong else ""


@cache
def _of_shards(sharding: jax.sharding.Sharding) -> Any:
    """Returns a jitted function from an array with this sharding to its digest.

    Each device computes the digest of its own shard.
    """
    if not isinstance(sharding, NamedSharding):
        return _of_array
    spec = sharding.spec
    names = [(axes,) if isinstance(axes, str) else axes or () for axes in spec]
    split_axes = tuple(axis for axes in names for axis in axes)

    def of_shard(shard: jax.Array) -> jax.Array:
        first = [jnp.uint32(0)] * shard.ndim
        for dim, axes in enumerate(names):
            if axes:
                first[dim] = jax.lax.axis_index(axes).astype(jnp.uint32) * shard.shape[dim]
        return jax.lax.psum(_in_blocks(shard, first), split_axes)

    whole = jax.shard_map(of_shard, mesh=sharding.mesh, in_specs=spec, out_specs=PartitionSpec())

    def of_shards(array: jax.Array) -> jax.Array:
        return whole(array)

    of_shards.__qualname__ = of_shards.__name__  # the name of its program on disk
    return jax.jit(of_shards)


def _in_blocks(part: jax.Array, first: Sequence[jax.Array | int]) -> jax.Array:
    """Returns `digest(part, first)`, one block of rows after the other."""
    if not part.size or not part.ndim:
        return digest(part, first)
    part = jax.device_put(part, jax.memory.Space.Device)
    rows = _rows_of_block(part.shape[0], part.nbytes // part.shape[0])

    def of_block(number: jax.Array) -> jax.Array:
        block = jax.lax.dynamic_slice_in_dim(part, number * rows, rows)
        return digest(block, [first[0] + number * rows, *first[1:]])

    of_blocks = jax.lax.map(of_block, jnp.arange(part.shape[0] // rows, dtype=jnp.uint32))
    return jnp.sum(of_blocks, dtype=jnp.uint32)


def _rows_of_block(rows: int, row_bytes: int) -> int:
    """Returns the largest divisor of `rows` whose rows have at most BLOCK_BYTES, or 1."""
    most = min(rows, max(1, BLOCK_BYTES // row_bytes))
    return next(count for count in range(most, 0, -1) if rows % count == 0)


@jax.jit
def _of_part(part: jax.Array, first: Sequence[jax.Array]) -> jax.Array:
    return _in_blocks(part, first)


@jax.jit
def _of_array(array: jax.Array) -> jax.Array:
    return _in_blocks(array, [0] * array.ndim)


def _row_digests(array: jax.Array, dims: int) -> jax.Array:
    terms = _terms(array, _indices(array.shape))
    rows = math.prod(array.shape[:dims])
    return jnp.sum(terms.reshape(rows, -1), axis=1, dtype=jnp.uint32)


def _terms(array: jax.Array, indices: Sequence[jax.Array]) -> jax.Array:
    """Returns what each element adds to the digest; `indices` are its positions in each dim."""
    array = jax.device_put(array, jax.memory.Space.Device)  # from the memory of the host, if there
    width = np.dtype(f"uint{8 * array.dtype.itemsize}")
    bits = jax.lax.bitcast_convert_type(array, width).astype(jnp.uint32)
    position = jnp.zeros(array.shape, jnp.uint32)
    for index, prime in zip(indices, PRIMES, strict=False):
        position += index * jnp.uint32(prime)
    return _mix(bits) * (_mix(position) | jnp.uint32(1))


def _indices(shape: Sequence[int]) -> list[jax.Array]:
    """Returns the positions of all elements in each dim."""
    return [jax.lax.broadcasted_iota(jnp.uint32, shape, dim) for dim in range(len(shape))]


def _indices_in(
    saved: Sequence[int], shape: Sequence[int], indices: Sequence[jax.Array]
) -> list[jax.Array]:
    """Returns the positions in an array whose layers are in other dims, from those in `shape`."""
    rest = layer_dims.common_dims(saved, shape)
    of_layers, ours = saved[: len(saved) - rest], shape[: len(shape) - rest]
    number = sum(
        index * jnp.uint32(math.prod(ours[dim + 1 :]))
        for dim, index in enumerate(indices[: len(ours)])
    )
    return [
        number // jnp.uint32(math.prod(of_layers[dim + 1 :])) % jnp.uint32(size)
        for dim, size in enumerate(of_layers)
    ] + list(indices[len(ours) :])


def _mix(x: jax.Array) -> jax.Array:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)
