"""Shardings of activations and gathered weights, from the rules table of the parameters.

The letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from trainer.contract.planning import sharding_rules

_fsdp_rows: ContextVar[int] = ContextVar("fsdp_rows", default=1)
GROUPED = "data"
"""Mesh axis that is manual where a model is traced for one group of devices along it. No layout
names it there. See trainer/step/group_sums.py."""


@contextmanager
def scattering_by_rows(rows: int) -> Iterator[None]:
    """Makes models traced inside scatter gradients over `rows` rows of `fsdp`, then in each row.

    1 scatters over all of `fsdp` in one collective, as is done where a mesh axis is manual. See
    `fsdp_rows` in trainer/contract/planning/mesh_layout.py.
    """
    token = _fsdp_rows.set(rows)
    try:
        yield
    finally:
        _fsdp_rows.reset(token)


def largest_of_groups(x: jax.Array) -> jax.Array:
    """Returns the elementwise maximum over all groups; `x` itself where there are none."""
    return jax.lax.pmax(x, GROUPED) if _is_in_group() else x


def batch_axes() -> tuple[str, ...]:
    """Returns the mesh axes that split the rows for which a model is traced."""
    return _of_rows(sharding_rules.BATCH_AXES)


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """Constrains the layout of `x` by the logical axis of each dim.

    None leaves a dim whole, and "batch" splits it like rows. "expert_batch" is for rows next to a
    dim that is split by experts. "tokens" is for a dim with an element per token shard.

    The mesh is that of `jax.set_mesh`; without one, `x` is unchanged. A dim that does not divide by
    its mesh axis stays whole, as in the plan.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, spec(x, *axes))


def spec(x: jax.Array, *axes: str | None) -> PartitionSpec:
    """Returns the spec of `x` on the mesh, by the logical axis of each dim: see `constrain`."""
    mesh = _sizes()
    return PartitionSpec(
        *(_mesh_axes(dim, axis, mesh) for dim, axis in zip(x.shape, axes, strict=True))
    )


def stages() -> int:
    """Returns the number of stages that the layers are split into."""
    mesh = jax.sharding.get_abstract_mesh()
    return 1 if mesh.empty else mesh.shape["pipeline"]


def row_shards() -> int:
    """Returns the number of parts that the rows of a batch are split into."""
    mesh = _sizes()
    return sharding_rules.row_shards(mesh) if mesh else 1


def rows_are_split(rows: int) -> bool:
    """Returns whether a mesh is set and splits `rows` into equal parts."""
    return not jax.sharding.get_abstract_mesh().empty and rows % row_shards() == 0


def token_shards() -> int:
    """Returns R, the number of parts that the tokens of a batch are split into."""
    mesh = _sizes()
    return sharding_rules.token_shards(mesh) if mesh else 1


def whole_sequences(x_BSHh: jax.Array, heads: str) -> jax.Array:
    """Gathers keys or values: each device with some positions of a row gets all of them.

    This happens once per pass. Each device has a part of the gradient, from its own queries; the
    parts are summed by a reduce-scatter. `heads` is the logical axis of the third dim.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["context"] == 1:
        return x_BSHh
    split, whole = (
        spec(x_BSHh, "batch", positions, heads, None) for positions in ("sequence", None)
    )
    return _between(x_BSHh, split, whole, 1)


def whole_sequences_of_heads(x_BSHh: jax.Array) -> jax.Array:
    """Exchanges heads: each device with some positions of a row gets all of them for fewer heads.

    This is an all-to-all along `context`. The gradient goes back right away, in the dtype of `x`.
    What is computed of the result goes back in the same way, to the devices with its positions.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["context"] == 1:
        return x_BSHh
    split = spec(x_BSHh, "batch", "sequence", "heads", None)
    whole = spec(x_BSHh, "batch", None, "whole_sequence_heads", None)
    return _between(x_BSHh, split, whole, 1)


def gathered(weight: jax.Array, axes: Sequence[str]) -> jax.Array:
    """Gathers a weight with these logical axes along `fsdp`, for the products of its layer.

    The forward and the backward pass then gather it once each, in the dtype of `weight`, and its
    gradient is scattered as soon as it exists. Without this constraint, the compiler gathers once
    per product and sums whole gradients.
    """
    layouts = _of_weight(weight, axes)
    return weight if layouts is None else _between(weight, *layouts, _rows())


def scattered(gradient: jax.Array, axes: Sequence[str]) -> jax.Array:
    """Scatters the gradient of a gathered weight with these logical axes along `fsdp`.

    `gathered` does that with its own; this is for gradients that JAX does not derive.
    """
    layouts = _of_weight(gradient, axes)
    return gradient if layouts is None else _to_stored(gradient, layouts[0], _rows())


def _rows() -> int:
    # JAX (0.10 to 0.12) cannot lower a layout that splits `fsdp` where another axis is manual.
    return 1 if jax.sharding.get_abstract_mesh().manual_axes else _fsdp_rows.get()


def _of_weight(
    weight: jax.Array, axes: Sequence[str]
) -> tuple[PartitionSpec, PartitionSpec] | None:
    """Returns the layouts of a weight as stored and as gathered; None if they are the same."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.shape["fsdp"] == 1:
        return None
    planned = sharding_rules.partition(weight.shape, tuple(axes), dict(mesh.shape))
    stored = sharding_rules.mesh_axes(planned)
    whole = tuple(None if axis == "fsdp" else axis for axis in stored)
    return PartitionSpec(*stored), PartitionSpec(*whole)


@partial(jax.custom_vjp, nondiff_argnums=(1, 2, 3))
def _between(x: jax.Array, stored: PartitionSpec, whole: PartitionSpec, rows: int) -> jax.Array:
    """Moves `x` to `whole` and its gradient to `stored`; a plain constraint keeps it in `whole`."""
    return jax.lax.with_sharding_constraint(x, whole)


def _forward(
    x: jax.Array, stored: PartitionSpec, whole: PartitionSpec, rows: int
) -> tuple[jax.Array, None]:
    return _between(x, stored, whole, rows), None


def _backward(
    stored: PartitionSpec, whole: PartitionSpec, rows: int, _: None, gradient: jax.Array
) -> tuple[jax.Array]:
    return (_to_stored(gradient, stored, rows),)


def _to_stored(gradient: jax.Array, stored: PartitionSpec, rows: int) -> jax.Array:
    if rows > 1:
        gradient = jax.lax.with_sharding_constraint(gradient, _over_rows(stored, rows))
    return jax.lax.with_sharding_constraint(gradient, stored)


def _over_rows(stored: PartitionSpec, rows: int) -> NamedSharding:
    """Returns `stored` with dims split by the rows of `fsdp` in place of all of it."""
    sizes: dict[str, int] = {}
    for axis, size in jax.sharding.get_abstract_mesh().shape.items():
        sizes |= {"rows": rows, axis: size // rows} if axis == "fsdp" else {axis: size}
    kinds = (AxisType.Auto,) * len(sizes)
    mesh = AbstractMesh(tuple(sizes.values()), tuple(sizes), axis_types=kinds)
    axes = ("rows" if axis == "fsdp" else axis for axis in stored)
    return NamedSharding(mesh, PartitionSpec(*axes))


_between.defvjp(_forward, _backward)


def _sizes() -> dict[str, int]:
    """Returns mesh axis -> the number of parts along it that the traced rows are on."""
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    return {**sizes, GROUPED: 1} if _is_in_group() else sizes


def _of_rows(axes: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis != GROUPED) if _is_in_group() else axes


def _is_in_group() -> bool:
    return GROUPED in jax.sharding.get_abstract_mesh().manual_axes


def _mesh_axes(dim: int, axis: str | None, mesh: dict[str, int]) -> str | tuple[str, ...] | None:
    if axis is None:
        return None
    if axis == "batch":
        return batch_axes() if dim % sharding_rules.row_shards(mesh) == 0 else None
    if axis == "tokens":
        axes = _of_rows(sharding_rules.TOKEN_AXES)
        return axes if dim % sharding_rules.token_shards(mesh) == 0 else None
    if axis == "expert_batch":
        axes = _of_rows(sharding_rules.EXPERT_BATCH_AXES)
        return axes if dim % sharding_rules.row_shards(mesh) == 0 else None
    return sharding_rules.mesh_axes(sharding_rules.partition((dim,), (axis,), mesh))[0]
