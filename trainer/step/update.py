"""An update of parameters and moments, which may be in the memory of the host.

Moments in the memory of the host (`optimizer.offload_moments`) come to the device for the update of
their parameter, and go back while those of the next one come. So the device holds the moments of at
most two parameters, and none during the forward and backward passes. CPU devices have no memory of
their own, so there the copies are left out.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from trainer.model import Params

HOST = "pinned_host"
"""Kind of the host's memory from which devices copy."""

Updated = tuple[Params, optax.OptState]
"""Parameters and moments."""


def updated(
    rule: optax.GradientTransformation,
    grads: Params,
    params: Params,
    moments: optax.OptState,
    rate: jax.Array,
    applied: jax.Array,
) -> Updated:
    """Returns parameters and moments after an update; unchanged ones if it is not `applied`.

    `rate` is the learning rate, and `applied` a bool scalar.
    """
    direction, moved = rule.update(grads, moments, params)
    stepped = jax.tree.map(lambda p, step: p - rate * step, params, direction)
    return chosen(applied, (stepped, moved), (params, moments))


def updated_from_host(
    rule: optax.GradientTransformation,
    grads: Params,
    params: Params,
    moments: optax.OptState,
    rate: jax.Array,
    applied: jax.Array,
) -> Updated:
    """Returns the same with moments in the memory of the host, one parameter after the other.

    The rule must treat each parameter alone. `applied` must depend on all gradients: moments are
    not copied before it is known.
    """
    stepped, parts = Params(), []
    # The smallest first: the compiler copies the first ones long before the update, and the memory
    # of most gradients is free when the largest come.
    for name in sorted(params, key=lambda name: params[name].size):
        # The barriers order the copies: the compiler would start all of them at once.
        far, applied = jax.lax.optimization_barrier((_only(moments, name), applied))
        near = _moved(far, jax.memory.Space.Device)
        grad, param = {name: grads[name]}, {name: params[name]}
        param, near = updated(rule, grad, param, near, rate, applied)
        part = (param, _moved(near, jax.memory.Space.Host))
        (param, far), applied = jax.lax.optimization_barrier((part, applied))
        stepped |= param
        parts.append(far)
    return {name: stepped[name] for name in params}, _joined(parts)


def chosen(applied: jax.Array, new: Any, old: Any) -> Any:
    """Returns the leaves of `new` if `applied`, else those of `old`."""
    return jax.tree.map(lambda new, old: jnp.where(applied, new, old), new, old)


def _is_dict(node: Any) -> bool:
    return isinstance(node, dict)


def _only(moments: optax.OptState, name: str) -> optax.OptState:
    """Returns a parameter's part of the moments, with all counters."""

    def part(node: Any) -> Any:
        return {key: leaf for key, leaf in node.items() if key == name} if _is_dict(node) else node

    return jax.tree.map(part, moments, is_leaf=_is_dict)


def _joined(parts: Sequence[optax.OptState]) -> optax.OptState:
    """Returns the moments of all parameters; the counters are alike in all parts."""

    def whole(*nodes: Any) -> Any:
        if not _is_dict(nodes[0]):
            return nodes[0]
        return {key: leaf for node in nodes for key, leaf in node.items()}

    return jax.tree.map(whole, *parts, is_leaf=_is_dict)


def _moved(moments: optax.OptState, space: Any) -> optax.OptState:
    """Copies moments to another memory; counters stay on the device."""

    def move(node: Any) -> Any:
        return jax.device_put(node, space) if _is_dict(node) else node

    return jax.tree.map(move, moments, is_leaf=_is_dict)
