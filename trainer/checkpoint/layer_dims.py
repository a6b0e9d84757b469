"""Arrays whose layers are in one dim in a checkpoint and in two in this run, or the other way.

The layers of a pipeline with several rounds are in two dims: see `in_rounds` in
trainer/contract/planning/pipeline.py. Their order is always that of the model, so one shape becomes
the other by a reshape. To move no layers between devices, each device reads all of them.
"""

import math
from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec, Sharding


def differ(saved: Sequence[int], wanted: Sequence[int]) -> bool:
    """Returns whether an array has its layers in other dims: its size is the same.

    A vocabulary with other padding has another size.
    """
    return tuple(saved) != tuple(wanted) and math.prod(saved) == math.prod(wanted)


def as_saved(
    saved: Sequence[int], leaf: Any, sharding: Sharding
) -> tuple[jax.ShapeDtypeStruct, Sharding]:
    """Returns the shape and the sharding in which to read an array for a leaf of a state."""
    if not differ(saved, leaf.shape):
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), sharding
    if isinstance(sharding, NamedSharding):
        rest = common_dims(saved, leaf.shape)
        spec = (*sharding.spec, *[None] * (len(leaf.shape) - len(sharding.spec)))
        of_rest = spec[len(spec) - rest :]
        parts = PartitionSpec(*[None] * (len(saved) - rest), *of_rest)
        sharding = NamedSharding(sharding.mesh, parts)
    return jax.ShapeDtypeStruct(tuple(saved), leaf.dtype), sharding


def as_wanted(array: jax.Array, leaf: Any, sharding: Sharding) -> jax.Array:
    """Returns an array that was read as `as_saved` says, in the shape and sharding of the leaf."""
    if not differ(array.shape, leaf.shape):
        return array
    reshaped = jax.jit(lambda x: x.reshape(leaf.shape), out_shardings=sharding)
    return jax.block_until_ready(reshaped(array))


def common_dims(saved: Sequence[int], wanted: Sequence[int]) -> int:
    """Returns the number of last dims that are no dims of layers, and thus the same."""
    pairs = list(zip(reversed(saved), reversed(wanted), strict=False))
    return next((n for n, (one, other) in enumerate(pairs) if one != other), len(pairs))
