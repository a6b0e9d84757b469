"""A JAX program for any number of hosts: every device holds a 1, and together they add them up."""

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

jax.distributed.initialize()

mesh = jax.make_mesh((jax.device_count(),), ("devices",))
split = NamedSharding(mesh, PartitionSpec("devices"))
ones = jax.jit(lambda: jnp.ones(jax.device_count()), out_shardings=split)()
add_up = jax.shard_map(
    lambda mine: jax.lax.psum(mine, "devices"),
    mesh=mesh,
    in_specs=PartitionSpec("devices"),
    out_specs=PartitionSpec(),
)
total = jax.jit(add_up)(ones)

print(f"process {jax.process_index()} of {jax.process_count()}")
print(f"{jax.local_device_count()} of {jax.device_count()} devices, together {total[0]:.0f}")
