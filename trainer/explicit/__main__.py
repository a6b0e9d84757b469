"""What the step of a job would do under explicit axis types, on devices that need not exist.

    python -m trainer.explicit JOB_FILE PLAN_FILE

Prints one JSON object on standard output: what was found as `explicit`, and why the backward pass
could not be looked at as `stopped` ("": it was).
"""

import json
import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from trainer.data.packing import Batch
from trainer.explicit.check import Report, check
from trainer.explicit.tally import Finding
from trainer.model import Network
from trainer.spec import rules
from trainer.spec.config import load
from trainer.spec.job import Job
from trainer.spec.plan import Plan
from trainer.train_step import micro_batch_loss


def main() -> int:
    """Reads the two files and prints what was found."""
    job = load(Path(sys.argv[1]), Job).value
    plan = Plan.model_validate_json(Path(sys.argv[2]).read_text(encoding="utf-8"))
    report = check_step(job, plan)
    found = [*map(_as_json, report.findings)]
    print(json.dumps({"explicit": found, "stopped": report.stopped}))
    return 0


def check_step(job: Job, plan: Plan) -> Report:
    """Loss and gradient of all micro-batches of a step."""
    sizes = tuple(plan.mesh[axis] for axis in rules.MESH_AXES)
    mesh = AbstractMesh(sizes, rules.MESH_AXES, axis_types=(AxisType.Auto,) * len(sizes))
    specs = {array.name: PartitionSpec(*array.spec) for array in plan.parameters}
    network = Network.of(job, plan)
    params = {
        name: _placed(leaf, mesh, specs[name])
        for name, leaf in jax.eval_shape(network.initial).items()
    }
    rows = PartitionSpec(rules.BATCH_AXES)
    micro = Batch(*(_placed(leaf, mesh, rows) for leaf in _micro_batch(job, plan)))
    step = _placed(jax.ShapeDtypeStruct((), jnp.int32), mesh, PartitionSpec())
    loss = partial(micro_batch_loss, network)
    return check(loss, mesh, params, micro, step, times=plan.batch.micro_batches)


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


def _as_json(found: Finding) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "pass": "backward" if found.backward else "forward",
        "place": [frame._asdict() for frame in found.place],
        "operation": found.operation,
        "from": found.old,
        "to": found.new,
        "times": found.times,
        "bytes": found.bytes,
        "reason": found.reason,
    }


if __name__ == "__main__":
    sys.exit(main())
