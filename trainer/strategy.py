"""What a step's parallelism must send at least, beside what the compiled program sends for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.collectives import Collective
from trainer.spec.job import Job
from trainer.spec.plan import ArrayPlan, Plan
from trainer.spec.resolve import FLOAT32_BYTES
from trainer.spec.roofline import (
    ALL_REDUCES_PER_LAYER,
    DTYPE_BYTES,
    GATHERS_AND_SCATTERS,
    alike,
    to_experts,
)

LAYERS = ("attention", "feed_forward")
WITH_WEIGHTS = ("embedding", *LAYERS, "loss")
RECOMPUTED = 1
"""All-reduces of a layer that full rematerialization does again: attention's, whose sum the
feed-forward part needs; that of the layer's end nobody reads again."""


@dataclass(frozen=True)
class Share:
    """Bytes of a device in one step."""

    must: int
    sent: int


def shares(found: Sequence[Collective], job: Job, plan: Plan) -> dict[str, Share]:
    """By strategy: `fsdp`, `tensor`, `data`, `expert` where there is an axis of it, and `other`,
    which must send nothing.
    """
    must = {
        "fsdp": _fsdp(plan),
        "tensor": _tensor(job, plan),
        "data": _data(plan),
        "other": 0,
    }
    if plan.mesh["expert"] > 1:
        must["expert"] = _expert(job, plan)
    sent = dict.fromkeys(must, 0)
    for one in found:
        sent[_strategy(one)] += one.bytes
    return {name: Share(must[name], sent[name]) for name in must}


def _strategy(one: Collective) -> str:
    if one.axis == "tensor" and one.part in LAYERS:
        return "tensor"
    if "expert" in one.axis.split("+"):
        return "expert"
    if one.axis == "fsdp" and one.part in WITH_WEIGHTS:
        return "fsdp"
    if one.axis.startswith("data") and one.backward:
        return "data"
    return "other"


def _fsdp(plan: Plan) -> int:
    """Each micro-batch gathers a weight for both passes, and scatters its gradient."""
    own = sum(_bytes(array, plan) for array in plan.parameters if "fsdp" in array.spec)
    return GATHERS_AND_SCATTERS * plan.batch.micro_batches * own * (plan.mesh["fsdp"] - 1)


def _tensor(job: Job, plan: Plan) -> int:
    batch, tensor = plan.batch, plan.mesh["tensor"]
    rows = batch.rows_per_device * batch.micro_batches
    activations = rows * job.data.seq_len * job.model.d_model * DTYPE_BYTES[plan.compute_dtype]
    times = ALL_REDUCES_PER_LAYER + (RECOMPUTED if job.model.remat == "full" else 0)
    return times * job.model.layers * 2 * activations * (tensor - 1) // tensor


def _data(plan: Plan) -> int:
    """The sum of all gradients, as their parameters lie."""
    data, own = plan.mesh["data"], sum(_bytes(array, plan) for array in plan.parameters)
    return 2 * own * (data - 1) // data


def _expert(job: Job, plan: Plan) -> int:
    """Tokens there and back, and the gradients of what all experts' devices have."""
    sums = 0.0
    for array in plan.parameters:
        ways = alike(array, plan)
        sums += 2 * _bytes(array, plan) * (ways - 1) / ways
    return int(to_experts(job, plan) + sums)


def _bytes(array: ArrayPlan, plan: Plan) -> int:
    """Of a device's part of a weight, in the type of the products."""
    return array.bytes_per_device * DTYPE_BYTES[plan.compute_dtype] // FLOAT32_BYTES
