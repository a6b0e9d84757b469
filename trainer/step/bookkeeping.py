"""What each step reports of all devices: the examples that it used, and stop requests."""

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from trainer.contract.planning import sharding_rules
from trainer.data.loader import batch_shardings
from trainer.distributed import stop_vote


def of_all_devices(
    mesh: Mesh, examples: jax.Array, requests: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Combines the digests of examples (M, B) and the stop requests in one collective.

    Returns the digest of all example numbers and the largest stop request.
    """
    axes = mesh.axis_names
    kinds = jnp.arange(len(stop_vote.StopRequest))

    def total(examples: jax.Array, requests: jax.Array) -> jax.Array:
        # Devices along the other axes have the same rows: one of them counts.
        others = [axis for axis in axes if axis not in sharding_rules.BATCH_AXES]
        counts = sum(jax.lax.axis_index(axis) for axis in others) == 0
        own = jnp.where(counts, digest(examples), 0)
        votes = jnp.sum(requests[:, None] == kinds, axis=0, dtype=own.dtype)
        return jax.lax.psum(jnp.append(own, votes), axes)

    specs = (
        batch_shardings(mesh).examples.spec,
        stop_vote.sharding(mesh).spec,
    )
    sums = jax.shard_map(total, mesh=mesh, in_specs=specs, out_specs=PartitionSpec())
    digest_of_all, *votes = sums(examples, requests)
    return digest_of_all, jnp.max(jnp.where(jnp.stack(votes) > 0, kinds, 0))


def digest(examples: jax.Array) -> jax.Array:
    """Returns the sum modulo 2^32 of a hash of each number, a uint32 scalar.

    The hash is the finalizer of MurmurHash3 (https://github.com/aappleby/smhasher). That maps 0 to
    0, so 2^32 divided by the golden ratio is added first.
    """
    mixed = examples.astype(jnp.uint32) + jnp.uint32(0x9E3779B9)
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        mixed = (mixed ^ (mixed >> shift)) * jnp.uint32(factor)
    return jnp.sum(mixed ^ (mixed >> 16), dtype=jnp.uint32)
