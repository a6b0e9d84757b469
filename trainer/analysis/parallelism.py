"""What a step's parallelism must send at least, beside what the compiled program sends for it."""

from collections.abc import Sequence
from dataclasses import dataclass

from trainer.analysis.collectives import Collective
from trainer.contract.config.job import Job
from trainer.contract.estimates.roofline import (
    ALL_REDUCES_PER_LAYER,
    DTYPE_BYTES,
    alike,
    keys_and_values,
    moves,
    own_bytes,
    to_experts,
)
from trainer.contract.planning import sharding_rules
from trainer.contract.planning.plan import Plan

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
    """By strategy: `fsdp`, `tensor`, `data`, `expert` and `context` where there are axes of them,
    and `other`, which must send nothing.
    """
    must = {
        "fsdp": _fsdp(plan),
        "tensor": _tensor(job, plan),
        "data": _data(plan),
        "other": 0,
    }
    if plan.mesh["expert"] > 1:
        must["expert"] = int(to_experts(job, plan)) + _sums(plan)
    if plan.mesh["context"] > 1:
        must["context"] = int(keys_and_values(job, plan)) + _sums(plan)
    sent = dict.fromkeys(must, 0)
    for one in found:
        sent[_strategy(one)] += one.bytes
    return {name: Share(must[name], sent[name]) for name in must}


def _strategy(one: Collective) -> str:
    if one.axis == "tensor" and one.part in LAYERS:
        return "tensor"
    for axis in sharding_rules.RARE_AXES:
        if axis in one.axis.split("+"):
            return axis
    if one.axis == "fsdp" and one.part in WITH_WEIGHTS:
        return "fsdp"
    # Sent a layer later, as between slices, gradients have lost where they come from.
    is_sum_of_replicas = one.axis == "data" and one.kind == "all-reduce"
    if is_sum_of_replicas or (one.axis.startswith("data") and one.backward):
        return "data"
    return "other"


def _fsdp(plan: Plan) -> int:
    """Each micro-batch gathers a weight for both passes, and scatters its gradient."""
    own = sum(
        moves(array) * own_bytes(array, plan) for array in plan.parameters if "fsdp" in array.spec
    )
    return plan.batch.micro_batches * own * (plan.mesh["fsdp"] - 1)


def _tensor(job: Job, plan: Plan) -> int:
    batch, tensor = plan.batch, plan.mesh["tensor"]
    tokens = batch.tokens_per_device * batch.micro_batches
    activations = tokens * job.decoder.d_model * DTYPE_BYTES[plan.compute_dtype]
    times = ALL_REDUCES_PER_LAYER + (RECOMPUTED if job.decoder.remat == "full" else 0)
    return times * job.decoder.layers * 2 * activations * (tensor - 1) // tensor


def _data(plan: Plan) -> int:
    """The sum of all gradients, as their parameters lie."""
    data, own = plan.mesh["data"], sum(own_bytes(array, plan) for array in plan.trained)
    return 2 * own * (data - 1) // data


def _sums(plan: Plan) -> int:
    """Of the gradients of what all devices along a rare axis have."""
    sums = 0.0
    for array in plan.trained:
        ways = alike(array, plan)
        sums += 2 * own_bytes(array, plan) * (ways - 1) / ways
    return int(sums)
