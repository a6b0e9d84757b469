"""Checks a job's training step, loss and gradient, under explicit axis types on the mesh of a plan.

The devices of the mesh need not exist.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from trainer.analysis.explicit.findings import findings
from trainer.analysis.explicit.interpreter import Rerun
from trainer.analysis.explicit.layouts import ExplicitMesh
from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.planning import sharding_rules
from trainer.contract.planning.plan import ArrayPlan, Plan
from trainer.contract.protocol.reports import ShardingReport
from trainer.data.packing import Batch
from trainer.model import network_of
from trainer.step.distillation import Teacher
from trainer.step.micro_batch import micro_batch_loss


def check(
    function: Callable[..., Any],
    mesh: AbstractMesh,
    *arguments: Any,
    gradient: bool = True,
    times: int = 1,
) -> ShardingReport:
    """Checks a function that runs `times` times a step.

    Arguments are pytrees of jax.ShapeDtypeStruct with shardings on `mesh`, whose axes are automatic
    as in the run itself. With `gradient`, the function's first result is a scalar, and the gradient
    by its first argument is checked too.
    """
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.make_jaxpr(function)(*arguments)
    explicit = ExplicitMesh.of(mesh)
    rerun = Rerun(explicit)
    first, *rest = ([*map(explicit.struct, jax.tree.leaves(tree))] for tree in arguments)

    def again(first: list[Any], rest: list[Any]) -> tuple[Any, list[Any]]:
        values = [*first, *jax.tree.leaves(rest)]
        result, *others = rerun.run(traced, values, [None] * len(traced.jaxpr.outvars))
        return result, others

    def report(function: Callable[..., Any], stopped: str = "") -> ShardingReport:
        with jax.sharding.use_abstract_mesh(explicit.mesh):
            program = jax.make_jaxpr(function)(first, rest)
        return ShardingReport(findings(program, rerun.notebook, explicit.sizes, times), stopped)

    if not gradient:
        return report(again)
    try:
        return report(jax.value_and_grad(again, has_aux=True))
    except Exception as error:  # in a differentiation rule, where no layout can be assumed
        return report(again, str(error).splitlines()[0])


def check_step(job: Job, plan: Plan) -> ShardingReport:
    """Checks loss and gradient of all micro-batches of a step.

    Products in 8 bits are checked as those in the compute dtype, which lie the same way: their
    gradient is not that of the operations which they consist of.
    """
    if isinstance(job.model, Model) and job.model.precision:
        wide = job.model.model_copy(update={"precision": None})
        job = job.model_copy(update={"model": wide})
    sizes = tuple(plan.mesh[axis] for axis in sharding_rules.MESH_AXES)
    mesh = AbstractMesh(sizes, sharding_rules.MESH_AXES, axis_types=(AxisType.Auto,) * len(sizes))
    network = network_of(job, plan)
    weights = _weights(plan.parameters, mesh)
    params = {array.name: weights.pop(array.name) for array in plan.trained}
    teacher = Teacher.of(job, plan, mesh)
    of_teacher = _weights(plan.teacher.parameters, mesh) if plan.teacher else None
    micro = Batch(
        *(
            # Example numbers have no dim for positions.
            _placed(
                leaf,
                mesh,
                PartitionSpec(*(sharding_rules.BATCH_AXES, "context")[: len(leaf.shape)]),
            )
            for leaf in _micro_batch(job, plan)
        )
    )
    step = _placed(jax.ShapeDtypeStruct((), jnp.int32), mesh, PartitionSpec())

    def loss(params: Any, base: Any, of_teacher: Any, micro: Batch, step: jax.Array) -> Any:
        return micro_batch_loss(network, {**base, **params}, micro, step, teacher, of_teacher)

    arguments = (params, weights, of_teacher, micro, step)
    return check(loss, mesh, *arguments, times=plan.batch.grad_accum_steps)


def _weights(arrays: Sequence[ArrayPlan], mesh: AbstractMesh) -> dict[str, jax.ShapeDtypeStruct]:
    """Returns the shapes of weights by name, with their shardings."""
    return {
        array.name: _placed(
            jax.ShapeDtypeStruct(array.shape, array.dtype),
            mesh,
            PartitionSpec(*sharding_rules.mesh_axes(array.spec)),
        )
        for array in arrays
    }


def _micro_batch(job: Job, plan: Plan) -> Batch:
    """Returns the shapes of a micro-batch (B, S)."""
    shape = (plan.batch.global_batch // plan.batch.grad_accum_steps, job.data.seq_len)
    tokens = jax.ShapeDtypeStruct(shape, jnp.int32)
    weights = jax.ShapeDtypeStruct(shape, jnp.float32)
    examples = jax.ShapeDtypeStruct(shape[:1], jnp.int32)
    return Batch(tokens, tokens, tokens, tokens, weights, examples)


def _placed(
    leaf: jax.ShapeDtypeStruct, mesh: AbstractMesh, spec: PartitionSpec
) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, spec))
