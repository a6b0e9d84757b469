"""Gradients of large weights, scattered over the devices of a real pod.

uv run --group tpu_compiler pytest -m tpu_compiler
"""

from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from tests.support.jobs import corpus_of, job_of
from tests.support.worlds import slice_world
from trainer.analysis import collectives, topology
from trainer.contract.planning.planner import resolve
from trainer.distributed import mesh as meshes
from trainer.model.sharding import constrain, gathered
from trainer.step import compiler_options

pytestmark = pytest.mark.tpu_compiler
SEQ_LEN, D_MODEL, D_FF = 1024, 8192, 28_672
UP, DOWN = ("embed", "mlp"), ("mlp", "embed")


def loss(weights: tuple[jax.Array, jax.Array], x_BSD: jax.Array) -> jax.Array:
    up_DF, down_FD = (weight.astype(x_BSD.dtype) for weight in weights)
    up_DF, down_FD = gathered(up_DF, UP), gathered(down_FD, DOWN)
    hidden_BSF = constrain(jax.nn.silu(x_BSD @ up_DF), "batch", None, "mlp")
    fed_BSD = constrain(hidden_BSF @ down_FD, "batch", None, None)
    return jnp.sum(fed_BSD.astype(jnp.float32) ** 2)


def test_parts_of_unsuitable_size_are_scattered_on_sparse_core() -> None:
    """Those of llama3-70b, 28,672 = 7 * 4,096: by default XLA sums these gradients whole,
    twice the bytes."""
    world = slice_world("v5p-512", 1)
    job = job_of(data={"global_batch": world.devices})
    plan = resolve(job, world, corpus_of(job))
    mesh = meshes.build(plan, topology.devices(world))
    placed = partial(NamedSharding, mesh)
    up, down = placed(PartitionSpec("fsdp", None)), placed(PartitionSpec(None, "fsdp"))
    weights = (
        jax.ShapeDtypeStruct((D_MODEL, D_FF), jnp.float32, sharding=up),
        jax.ShapeDtypeStruct((D_FF, D_MODEL), jnp.float32, sharding=down),
    )
    shape = (world.devices, SEQ_LEN, D_MODEL)
    x_BSD = jax.ShapeDtypeStruct(shape, jnp.bfloat16, sharding=placed(PartitionSpec("fsdp")))
    gradient = jax.jit(
        jax.grad(loss), out_shardings=(up, down), compiler_options=compiler_options.of_step(mesh)
    )
    with jax.set_mesh(mesh):
        text = gradient.lower(weights, x_BSD).compile().as_text()
    sent: Counter[str] = Counter()
    for one in collectives.of(text or "", plan):
        sent[one.kind] += one.bytes
    one_scatter = 2 * (2 * D_MODEL * D_FF) * 255 // 256
    assert sent["reduce-scatter"] == pytest.approx(one_scatter, rel=0.01)
    assert sent["all-reduce"] < 0.01 * one_scatter
