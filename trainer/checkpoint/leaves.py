"""A state as a flat dict of readable names, the form in which it is saved.

    step, params.layers.attention.query.kernel, optimizer.mu.embedding.table, optimizer.count,
    average.embedding.table, ...

Places in optax's chain are left out: another link in it does not change the names.
"""

from typing import Any

import jax
from jax.tree_util import DictKey, GetAttrKey, KeyPath

from trainer.train_step import State


def flatten(state: State[Any]) -> dict[str, Any]:
    """Name -> leaf of what moves, in the tree's order; a name that comes again gets a number."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(state.moving)
    flat: dict[str, Any] = {}
    for path, leaf in leaves:
        name = plain = _name(path)
        number = 1
        while name in flat:
            name, number = f"{plain}.{number}", number + 1
        flat[name] = leaf
    return flat


def unflatten(like: State[Any], flat: dict[str, Any]) -> State[Any]:
    """The state of the form of `like`, without a base, whose `flatten` is `flat`."""
    tree = jax.tree.structure(like.moving)
    return jax.tree.unflatten(tree, [flat[name] for name in flatten(like)])


def _name(path: KeyPath) -> str:
    parts = [
        str(key.name if isinstance(key, GetAttrKey) else key.key)
        for key in path
        if isinstance(key, (GetAttrKey, DictKey))
    ]
    return ".".join(parts)
