"""What the step of a job would do under explicit axis types, on devices that need not exist.

    python -m trainer.explicit JOB_FILE PLAN_FILE

Prints one JSON object on standard output: what was found as `explicit`, and why the backward pass
could not be looked at as `stopped` ("": it was).
"""

import json
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from trainer.data.packing import Batch
from trainer.explicit.check import Report, check
from trainer.explicit.tally import Finding
from trainer.spec import rules
from trainer.spec.config import load
from trainer.spec.job import Job
from trainer.spec.plan import Plan
from trainer.train_step import Trainable


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
    trainable = Trainable.of(job, plan, mesh)
    params = {
        name: jax.ShapeDtypeStruct(
            leaf.shape, leaf.dtype, sharding=trainable.shardings.params[name]
        )
        for name, leaf in trainable.shapes().params.items()
    }
    step = jax.ShapeDtypeStruct((), jnp.int32, sharding=NamedSharding(mesh, PartitionSpec()))
    times = plan.batch.micro_batches
    return check(
        trainable.micro_batch_loss, mesh, params, _micro_batch(job, plan, mesh), step, times=times
    )


def _micro_batch(job: Job, plan: Plan, mesh: AbstractMesh) -> Batch:
    """Shapes (B, S) with their rows split as in the run."""
    rows = plan.batch.global_batch // plan.batch.micro_batches
    sharding = NamedSharding(mesh, PartitionSpec(rules.BATCH_AXES))

    def of(dtype: jnp.dtype, *shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

    tokens = of(jnp.int32, rows, job.data.seq_len)
    weights = of(jnp.float32, rows, job.data.seq_len)
    return Batch(tokens, tokens, tokens, tokens, weights, of(jnp.int32, rows))


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
