"""A state as a flat dict of readable names, the form in which it is saved.

    step, params.layers.attention.query.kernel, optimizer.mu.embedding.table, optimizer.count,
    average.embedding.table, ...

Positions in optax's chain are left out, so another link in the chain does not change the names.
"""

import math
from collections.abc import Iterator, Mapping
from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey, KeyPath

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
