"""Muon: orthogonalized momentum, so that an update has the same size in all directions.

Applies only to the weights between a layer's features: see `matrix` in
trainer/contract/planning/optimizer_state.py.
The letters of dims are those of trainer/model/__init__.py.

References:
    Muon, with the polynomial's coefficients: https://kellerjordan.github.io/posts/muon/
    The size of an update: Moonlight, section 2.2, https://arxiv.org/abs/2502.16982
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec

from trainer.contract.planning import sharding_rules
from trainer.contract.planning.optimizer_state import Matrix, matrix
from trainer.model import Params

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
"""Coefficients of an odd polynomial that maps (0, 1] near 1 when it is applied a few times."""
ROUNDS = 5
RMS = 0.2
"""Root mean square of an update: as with AdamW, so its learning rates and decays fit both."""


def scale_by_muon(
    momentum: float, matrices: Mapping[str, tuple[str, ...]]
) -> optax.GradientTransformation:
    """Returns the rule for the direction of `matrices`: parameter name -> logical axes.

    Nesterov momentum, orthogonalized, and scaled by 0.2 sqrt(max(m, n)).
    """

    def orthogonal_steps(steps: Any, params: Any) -> Params:
        del params
        mesh = dict(jax.sharding.get_abstract_mesh().shape)
        stacks = {name: _stack(step, matrices[name], mesh) for name, step in steps.items()}
        updates = Params()
        for group in _groups(stacks, mesh.get("fsdp", 1)):
            found = _orthogonal_group(list(group.values()), mesh)
            updates |= {
                name: _as_weight(update, steps[name].shape, matrices[name])
                for name, update in zip(group, found, strict=True)
            }
        return {name: updates[name] for name in steps}

    return optax.chain(optax.trace(momentum, nesterov=True), optax.stateless(orthogonal_steps))


def orthogonal(x_Zmn: jax.Array) -> jax.Array:
    """Returns matrices near the given ones, all of whose singular values are roughly 1.

    Five Newton-Schulz iterations of a quintic polynomial, in the dtype of the input.
    """
    if x_Zmn.shape[1] > x_Zmn.shape[2]:
        return orthogonal(x_Zmn.mT).mT
    norms_Z11 = jnp.sqrt(jnp.sum(x_Zmn**2, axis=(1, 2), keepdims=True))
    x_Zmn = x_Zmn / (norms_Z11 + 1e-8)
    first, second, third = COEFFICIENTS
    for _ in range(ROUNDS):
        gram_Zmm = x_Zmn @ x_Zmn.mT
        x_Zmn = first * x_Zmn + (second * gram_Zmm + third * gram_Zmm @ gram_Zmm) @ x_Zmn
    return x_Zmn


class _Stack(NamedTuple):
    """The matrices of a weight: the layers first, then other stacked dims, rows and columns."""

    matrices: jax.Array
    stored: tuple[str | None, ...]
    """Mesh axis of each dim."""

    @property
    def layers(self) -> int:
        return self.matrices.shape[0]


def _stack(step: jax.Array, axes: tuple[str, ...], mesh: Mapping[str, int]) -> _Stack:
    dims = _dims(axes)
    stored = sharding_rules.partition(step.shape, axes, mesh) if mesh else (None,) * step.ndim
    sides = (dims.rows, dims.columns)
    shape = [step.shape[dim] for dim in dims.stacked]
    shape += [math.prod(step.shape[dim] for dim in side) for side in sides]
    of_sides = [next((stored[dim] for dim in side if stored[dim]), None) for side in sides]
    stacked = step.transpose((*dims.stacked, *dims.rows, *dims.columns)).reshape(shape)
    return _Stack(stacked, (*(stored[dim] for dim in dims.stacked), *of_sides))


def _as_weight(update: jax.Array, shape: tuple[int, ...], axes: tuple[str, ...]) -> jax.Array:
    """Returns the update of a stack with the shape of its weight."""
    dims = _dims(axes)
    order = (*dims.stacked, *dims.rows, *dims.columns)
    return update.reshape([shape[dim] for dim in order]).transpose(
        [order.index(dim) for dim in range(len(shape))]
    )


def _dims(axes: tuple[str, ...]) -> Matrix:
    dims = matrix(axes)
    assert dims
    return dims


def _groups(stacks: Mapping[str, _Stack], devices: int) -> list[dict[str, _Stack]]:
    """Groups stacks of matrices alike, up to one layer per device.

    Devices with fewer layers than others wait for these: a group has one round of layers where its
    stacks had one each.
    """
    groups = list[dict[str, _Stack]]()
    for name, stack in stacks.items():
        for group in groups:
            if _fits(stack, list(group.values()), devices):
                group[name] = stack
                break
        else:
            groups.append({name: stack})
    return groups


def _fits(stack: _Stack, group: Sequence[_Stack], devices: int) -> bool:
    first = group[0]
    is_alike = stack.matrices.shape[1:] == first.matrices.shape[1:] and stack.stored == first.stored
    is_whole = stack.stored[0] is None  # joined layers that a pipeline splits would move
    return is_alike and is_whole and stack.layers + sum(one.layers for one in group) <= devices


def _orthogonal_group(group: Sequence[_Stack], mesh: Mapping[str, int]) -> list[jax.Array]:
    """Returns the updates of stacks that are exchanged together."""
    joined = jnp.concatenate([stack.matrices for stack in group])
    if not mesh:
        update = _updates(joined)
    else:
        stored = PartitionSpec(*group[0].stored)
        # Whole layers per device, not shards of all: no work is duplicated.
        rest = (None if axis == "fsdp" else axis for axis in group[0].stored[1:])
        by_layers = PartitionSpec("fsdp", *rest)
        padded = _padded(joined, mesh["fsdp"])
        update = _updates(jax.lax.with_sharding_constraint(padded, by_layers))
        update = jax.lax.with_sharding_constraint(update, by_layers)
        update = jax.lax.with_sharding_constraint(update, stored)
    ends = list(itertools.accumulate(stack.layers for stack in group))
    return jnp.split(update[: ends[-1]], ends[:-1])


def _padded(stack: jax.Array, devices: int) -> jax.Array:
    """Returns the stack with layers of zeros, so that all devices have the same number."""
    return jnp.pad(stack, [(0, -stack.shape[0] % devices), *[(0, 0)] * (stack.ndim - 1)])


def _updates(stack: jax.Array) -> jax.Array:
    rows, columns = stack.shape[-2:]
    update_Zmn = orthogonal(stack.reshape(-1, rows, columns)) * RMS * max(rows, columns) ** 0.5
    return update_Zmn.reshape(stack.shape)
