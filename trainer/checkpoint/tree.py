"""A state as a flat dict of readable names, the form in which it is saved, and its digests.

    step, params.layers.attention.query.kernel, optimizer.mu.embedding.table, optimizer.count,
    average.embedding.table, ...

Positions in optax's chain are left out, so another link in the chain does not change the names.
A digest is one number per array, which any change of a bit changes. It is the same on every mesh.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey, KeyPath

from trainer.checkpoint import layer_dims
from trainer.contract.records.checkpoint_metadata import CheckpointMetadata
from trainer.programs import executables
from trainer.step.train_state import TrainState

PARTS = 8
"""Number of parts in which a restore reads its shards; about one part is in memory twice."""


def flatten(state: TrainState[Any]) -> dict[str, Any]:
    """Returns name -> trainable leaf, in the tree's order; repeated names get a number."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.trainable)
    flat: dict[str, Any] = {}
    for path, leaf in leaves:
        name = plain = _name(path)
        number = 1
        while name in flat:
            name, number = f"{plain}.{number}", number + 1
        flat[name] = leaf
    return flat


def unflatten(like: TrainState[Any], flat: dict[str, Any]) -> TrainState[Any]:
    """Returns the state with the structure of `like`, without a base, whose `flatten` is `flat`."""
    tree = jax.tree.structure(like.trainable)
    return jax.tree.unflatten(tree, [flat[name] for name in flatten(like)])


def _name(path: KeyPath) -> str:
    parts = [
        str(key.name if isinstance(key, GetAttrKey) else key.key)
        for key in path
        if isinstance(key, (GetAttrKey, DictKey))
    ]
    return ".".join(parts)


PRIMES = (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1)
"""Primes of xxHash32 (https://github.com/Cyan4973/xxHash), one per dim."""


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


def digests(arrays: Iterable[jax.Array]) -> list[int]:
    """Returns all digests, one program each: on CPU, a single program would hold copies of all."""
    return [int(executables.call(_compiled, array)) for array in arrays]


def prepare_digests(arrays: Iterable[jax.ShapeDtypeStruct]) -> None:
    """Compiles the programs of `digests` for such arrays, with shardings, and keeps them."""
    for array in arrays:
        executables.shared(_compiled, array)


def part_digest(part: jax.Array, first: Sequence[int]) -> jax.Array:
    """Returns the digest of a part of an array, without waiting for it."""
    return executables.call(_compiled, part, [np.uint32(position) for position in first])


_compiled = jax.jit(digest)


def groups(
    like: Mapping[str, Any], shardings: Mapping[str, Any], parts: int = PARTS
) -> Iterator[list[str]]:
    """Yields groups of array names. A group's arrays are in memory twice while it is read.

    A group is at most 1/`parts` of the bytes of all shards, or one array.
    """
    sizes = {
        name: math.prod(shardings[name].shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for name, leaf in like.items()
    }
    room = sum(sizes.values()) / parts
    group: list[str] = []
    for name in sorted(like, key=lambda name: -sizes[name]):
        if group and sum(sizes[n] for n in group) + sizes[name] > room:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def changed(flat: Mapping[str, jax.Array], about: CheckpointMetadata) -> str:
    """Returns a text that names the arrays whose digest is not the saved one; "": none."""
    wrong = [
        name
        for name, array in flat.items()
        if _digest_as_saved(array, about.arrays[name].shape) != about.arrays[name].digest
    ]
    return f"the data of {', '.join(wrong)} has changed since it was saved" if wrong else ""


def _digest_as_saved(array: jax.Array, saved: Sequence[int]) -> int:
    if not layer_dims.differ(saved, array.shape):
        return digests([array])[0]
    return int(jax.jit(partial(digest, saved=saved))(array))


def _mix(x: jax.Array) -> jax.Array:
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = (x ^ (x >> shift)) * jnp.uint32(factor)
    return x ^ (x >> 16)
