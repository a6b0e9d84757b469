"""Muon: orthogonalized momentum, so that an update has the same size in all directions.

Applies only to the weights between a layer's features: see `matrix` in
trainer/contract/planning/optimizer_state.py.
The letters of dims are those of trainer/model/__init__.py.

References:
    Muon, with the polynomial's coefficients: https://kellerjordan.github.io/posts/muon/
    The size of an update: Moonlight, section 2.2, https://arxiv.org/abs/2502.16982
"""

import math
from collections.abc import Mapping
from typing import Any

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
        return {name: _orthogonal_step(step, matrices[name]) for name, step in steps.items()}

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


def _orthogonal_step(step: jax.Array, axes: tuple[str, ...]) -> jax.Array:
    found = matrix(axes)
    assert found
    mesh = dict(jax.sharding.get_abstract_mesh().shape)
    if not mesh:
        return _of_matrices(step, found)
    layer = found.stacked[0]
    padded = _padded(step, layer, mesh["fsdp"])
    stored = sharding_rules.partition(step.shape, axes, mesh)
    layout = _by_layers(stored, layer)
    update = _of_matrices(jax.lax.with_sharding_constraint(padded, PartitionSpec(*layout)), found)
    update = jax.lax.with_sharding_constraint(update, PartitionSpec(*layout))
    update = jax.lax.with_sharding_constraint(update, PartitionSpec(*stored))
    return jax.lax.slice_in_dim(update, 0, step.shape[layer], axis=layer)


def _padded(step: jax.Array, layer: int, devices: int) -> jax.Array:
    """Returns the step with layers of zeros, so that all devices have the same number."""
    missing = -step.shape[layer] % devices
    return jnp.pad(step, [(0, missing if dim == layer else 0) for dim in range(step.ndim)])


def _by_layers(stored: tuple[str | None, ...], layer: int) -> tuple[str | None, ...]:
    """Returns a layout with whole layers per device, not shards of all: no work is duplicated."""
    whole = [None if axis == "fsdp" else axis for axis in stored]
    return (*whole[:layer], "fsdp", *whole[layer + 1 :])


def _of_matrices(step: jax.Array, found: Matrix) -> jax.Array:
    order = (*found.stacked, *found.rows, *found.columns)
    matrices = step.transpose(order)
    rows, columns = (math.prod(step.shape[d] for d in dims) for dims in (found.rows, found.columns))
    update_Zmn = orthogonal(matrices.reshape(-1, rows, columns)) * RMS * max(rows, columns) ** 0.5
    return update_Zmn.reshape(matrices.shape).transpose([order.index(d) for d in range(step.ndim)])
