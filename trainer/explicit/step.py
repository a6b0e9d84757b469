"""A job's training step under explicit axis types: loss and gradient, on the mesh of a plan."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from trainer.data.packing import Batch
from trainer.explicit.check import Report, check
from trainer.model import network_of
from trainer.spec import rules
from trainer.spec.job import Job
from trainer.spec.plan import Plan
from trainer.train_step import micro_batch_loss


def check_step(job: Job, plan: Plan) -> Report:
    """Loss and gradient of all micro-batches of a step."""
    sizes = tuple(plan.mesh[axis] for axis in rules.MESH_AXES)
    mesh = AbstractMesh(sizes, rules.MESH_AXES, axis_types=(AxisType.Auto,) * len(sizes))
    specs = {array.name: PartitionSpec(*array.spec) for array in plan.parameters}
    network = network_of(job, plan)
    kept_as = {array.name: array.dtype for array in plan.parameters}
    weights = {
        name: _placed(jax.ShapeDtypeStruct(leaf.shape, kept_as[name]), mesh, specs[name])
        for name, leaf in jax.eval_shape(network.initial).items()
    }
    params = {array.name: weights.pop(array.name) for array in plan.trained}
    micro = Batch(
        *(
            # The numbers of examples have no dim for positions.
            _placed(leaf, mesh, PartitionSpec(*(rules.BATCH_AXES, "context")[: len(leaf.shape)]))
            for leaf in _micro_batch(job, plan)
        )
    )
    step = _placed(jax.ShapeDtypeStruct((), jnp.int32), mesh, PartitionSpec())

    def loss(params: Any, base: Any, micro: Batch, step: jax.Array) -> Any:
        return micro_batch_loss(network, {**base, **params}, micro, step)

    return check(loss, mesh, params, weights, micro, step, times=plan.batch.micro_batches)


def _micro_batch(job: Job, plan: Plan) -> Batch:
    """Shapes (B, S)."""
    shape = (plan.batch.global_batch // plan.batch.micro_batches, job.data.seq_len)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    weights = jax.ShapeDtypeStruct(shape, jnp.float32)
    examples = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
    return Batch(tokens, tokens, tokens, tokens, weights, examples)


def _placed(
    leaf: jax.ShapeDtypeStruct, mesh: AbstractMesh, spec: PartitionSpec
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))
