"""Sums over a batch on CPU devices that split only its rows: each device computes its own part.

Gloo sends each array of a collective by itself, in messages whose number grows with the square of
the number of devices. The compiler sums the gradient of each layer's weight when it is computed:
dozens of collectives a step. Here each device gathers all weights, computes the gradients of its
rows, and scatters those of all layers together, as FSDP does by hand.
The letters of dims are those of trainer/model/__init__.py.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.sharding import AbstractMesh, Mesh, NamedSharding, PartitionSpec

from trainer.data.loader import batch_shardings
from trainer.data.packing import Batch
from trainer.model import Params

DATA, FSDP = "data", "fsdp"
Totals = TypeVar("Totals")


def local_sums(
    mesh: Mesh,
    shardings: Mapping[str, NamedSharding],
    sums: Callable[..., tuple[Totals, Params]],
    weights: Params,
    batch: Batch,
    *scalars: jax.Array,
) -> tuple[Totals, Params]:
    """Returns the sum over devices of `sums(weights, batch, *scalars)`, for the rows of each.

    `sums` returns totals, and gradients of some or none of the weights. Weights and gradients are
    sharded by `shardings`.
    """
    specs = {name: _without_ones(sharding) for name, sharding in shardings.items()}

    def of_device(weights: Params, batch: Batch, *scalars: jax.Array) -> tuple[Totals, Params]:
        whole = _gathered(weights, specs)
        # The model must not constrain what one device has.
        with jax.sharding.use_abstract_mesh(AbstractMesh((), ())):
            totals, grads = sums(whole, batch, *scalars)
        scattered = _scattered(grads, specs)
        rest = {name: grad for name, grad in grads.items() if name not in scattered}
        flat, restored = ravel_pytree((totals, rest))
        totals, rest = restored(jax.lax.psum(flat, (DATA, FSDP)))
        return totals, scattered | rest

    of_batch = jax.tree.map(lambda sharding: sharding.spec, batch_shardings(mesh))
    trained = jax.eval_shape(sums, weights, batch, *scalars)[1]
    return jax.shard_map(
        of_device,
        mesh=mesh,
        in_specs=(specs, of_batch, *[PartitionSpec()] * len(scalars)),
        out_specs=(PartitionSpec(), {name: specs[name] for name in trained}),
        check_vma=False,
    )(weights, batch, *scalars)


def norm(mesh: Mesh, shardings: Mapping[str, NamedSharding], grads: Params) -> jax.Array:
    """Returns the norm of all gradients together, by one collective instead of one per weight."""
    specs = {name: _without_ones(shardings[name]) for name in grads}

    def of_device(grads: Params) -> jax.Array:
        # Of the devices with the same part of a gradient, each adds its share.
        shares = [
            jnp.sum(jnp.square(grad)) / _copies(mesh, specs[name]) for name, grad in grads.items()
        ]
        return jnp.sqrt(jax.lax.psum(sum(shares), (DATA, FSDP)))

    return jax.shard_map(
        of_device, mesh=mesh, in_specs=(specs,), out_specs=PartitionSpec(), check_vma=False
    )(grads)


def _without_ones(sharding: NamedSharding) -> PartitionSpec:
    """Returns the spec of a sharding without mesh axes of size 1, which split nothing."""
    sizes = sharding.mesh.shape
    return PartitionSpec(*(axis if axis and sizes[axis] > 1 else None for axis in sharding.spec))


def _copies(mesh: Mesh, spec: PartitionSpec) -> int:
    """Returns the number of devices that have the same part of an array."""
    return mesh.size // math.prod(mesh.shape[axis] for axis in spec if axis)


def _gathered(shards: Params, specs: Mapping[str, PartitionSpec]) -> Params:
    """Returns the whole weights, by one collective for all of them."""
    split = _split_dims(shards, specs)
    rows = [jnp.moveaxis(shards[name], dim, 0) for name, dim in split.items()]
    if not rows:
        return shards
    flat_AO = jax.lax.all_gather(jnp.concatenate([row.ravel() for row in rows]), FSDP)
    parts = jnp.split(flat_AO, _ends(row.size for row in rows), axis=1)
    return shards | {
        name: jnp.moveaxis(part.reshape(-1, *row.shape[1:]), 0, dim)
        for (name, dim), row, part in zip(split.items(), rows, parts, strict=True)
    }


def _scattered(grads: Params, specs: Mapping[str, PartitionSpec]) -> Params:
    """Returns the device's shards of the summed gradients that are split, by one collective."""
    split = _split_dims(grads, specs)
    rows = [jnp.moveaxis(grads[name], dim, 0) for name, dim in split.items()]
    if not rows:
        return {}
    ways = jax.lax.axis_size(FSDP)
    flat_AO = jnp.concatenate([row.reshape(ways, -1) for row in rows], axis=1)
    flat_O = jax.lax.psum_scatter(flat_AO, FSDP)
    if jax.lax.axis_size(DATA) > 1:
        flat_O = jax.lax.psum(flat_O, DATA)
    parts = jnp.split(flat_O, _ends(row.size // ways for row in rows))
    return {
        name: jnp.moveaxis(part.reshape(-1, *row.shape[1:]), 0, dim)
        for (name, dim), row, part in zip(split.items(), rows, parts, strict=True)
    }


def _split_dims(arrays: Params, specs: Mapping[str, PartitionSpec]) -> dict[str, int]:
    """Returns the dim along which each array is split, without the arrays that are not."""
    return {name: specs[name].index(FSDP) for name in arrays if FSDP in specs[name]}


def _ends(sizes: Iterable[int]) -> list[int]:
    """Returns where to split arrays of such sizes that follow one another."""
    return list(itertools.accumulate(sizes))[:-1]
