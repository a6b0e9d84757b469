"""Whether CPU devices compute gradients of their own rows: see trainer/step/local_sums.py."""

import math

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.planning.plan import Plan

MOST_BYTES = 32 * 2**20
"""Largest size of all weights: a device has them and their gradients as a whole at the same time.
Above it, the time of a collective depends on its bytes rather than its messages."""
COPIES = 3
"""Number of copies of all weights on a device: weights, gradients, and one of them as a vector."""


def sums_locally(job: Job, plan: Plan) -> bool:
    """Returns whether the devices of a job compute their sums by themselves.

    Layers with experts exchange rows, a custom model has collectives of its own, and a teacher's
    weights are not among those that a device gathers.
    """
    splits_only_rows = plan.mesh["data"] * plan.mesh["fsdp"] == plan.world.devices > 1
    is_dense = isinstance(job.model, Model) and job.model.moe is None and plan.precision is None
    is_alone = plan.teacher is None
    is_reordered = plan.replay is not None and plan.replay.reordered
    is_small = whole_bytes(plan) <= MOST_BYTES
    are_alike = {array.dtype for array in plan.parameters} == {"float32"}
    is_possible = plan.world.on_cpu and splits_only_rows and is_dense and is_alone and are_alike
    return is_possible and is_small and not is_reordered


def local_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes of whole weights and gradients on a device; 0 without such sums."""
    return COPIES * whole_bytes(plan) if sums_locally(job, plan) else 0


def whole_bytes(plan: Plan) -> int:
    """Returns the bytes of all weights in float32."""
    return sum(4 * math.prod(array.shape) for array in plan.parameters)
