"""Where activations lie, by the same table of rules as the parameters."""

import jax
from jax.sharding import PartitionSpec

from trainer.spec import rules


def constrain(x: jax.Array, *axes: str | None) -> jax.Array:
    """`x` laid out by the logical axis of each dim; None is whole, "batch" is split by rows.

    Follows the mesh of `jax.set_mesh`; without one nothing happens. A dim that does not divide by
    its mesh axis stays whole, as in the plan.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    spec = [
        _mesh_axes(dim, axis, dict(mesh.shape)) for dim, axis in zip(x.shape, axes, strict=True)
    ]
    return jax.lax.with_sharding_constraint(x, PartitionSpec(*spec))


def _mesh_axes(dim: int, axis: str | None, mesh: dict[str, int]) -> str | tuple[str, ...] | None:
    if axis is None:
        return None
    if axis == "batch":
        shards = mesh["data"] * mesh["fsdp"]
        return rules.BATCH_AXES if dim % shards == 0 else None
    return rules.partition((dim,), (axis,), mesh)[0]
