"""Bytes that a step's parallelism must send at least, and those that the program sends for it."""

from collections.abc import Sequence

from trainer.contract.config.job import Job
from trainer.contract.config.model import REPEATING_PRODUCTS
from trainer.contract.estimates.traffic import (
    activation_bytes,
    alike,
    keys_and_values,
    moved_bytes,
    own_bytes,
    passed_on,
    summed_bytes,
    to_experts,
)
from trainer.contract.planning import sharding_rules
from trainer.contract.planning.parameter_shapes import norm_places
from trainer.contract.planning.pipeline import layer_runs, uses
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol.reports import Collective, Share

LAYERS = ("attention", "mlp")
WITH_WEIGHTS = ("embedding", *LAYERS, "loss")


def shares(found: Sequence[Collective], job: Job, plan: Plan) -> dict[str, Share]:
    """Returns shares by strategy: `fsdp`, `tensor`, `data`, and `other`, which must send nothing.

    `pipeline`, `expert` and `context` are included when their axes are larger than 1.
    """
    must = {
        "fsdp": _fsdp(plan),
        "tensor": _tensor(job, plan),
        "data": _data(plan),
        "other": 0,
    }
    if plan.mesh["pipeline"] > 1:
        must["pipeline"] = int(passed_on(job, plan, plan.mesh["pipeline"]))
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
    # Only gradients of weights are scattered, also in the scope of what a scatter is fused with.
    if one.axis == "fsdp" and (one.part in WITH_WEIGHTS or one.kind == "reduce-scatter"):
        return "fsdp"
    # Gradients that are sent a layer later, as between slices, have lost their scope.
    is_sum_of_replicas = one.axis == "data" and one.kind == "all-reduce"
    if is_sum_of_replicas or (one.axis.startswith("data") and one.backward):
        return "data"
    return "other"


def _fsdp(plan: Plan) -> int:
    """Returns bytes: each micro-batch gathers weights for both passes and scatters gradients."""
    own = sum(
        uses(array, plan) * moved_bytes(array, plan)
        for array in plan.parameters
        if "fsdp" in array.spec
    )
    return int(own) * (plan.mesh["fsdp"] - 1)


def _tensor(job: Job, plan: Plan) -> int:
    tensor = plan.mesh["tensor"]
    sums = summed_bytes(job, plan) + _recomputed_sums(job) * activation_bytes(job, plan)
    return layer_runs(job, plan) * 2 * sums * (tensor - 1) // tensor


def _recomputed_sums(job: Job) -> int:
    """Returns the all-reduces of a layer that rematerialization of products repeats.

    They are that of attention, whose sum the feed-forward part needs unless it is offloaded, and
    that at the layer's end if a norm reads it.
    """
    if job.decoder.remat not in REPEATING_PRODUCTS:
        return 0
    return norm_places(job.decoder)[1] + ("attention_output" not in job.decoder.offload)


def _data(plan: Plan) -> int:
    """Returns the bytes of summing all gradients, which are sharded like their parameters."""
    data, own = plan.mesh["data"], sum(own_bytes(array, plan) for array in plan.trained)
    return 2 * own * (data - 1) // data


def _sums(plan: Plan) -> int:
    """Returns the bytes of summing the gradients of parameters that rare axes replicate."""
    sums = 0.0
    for array in plan.trained:
        ways = alike(array, plan)
        sums += 2 * own_bytes(array, plan) * (ways - 1) / ways
    return int(sums)
