"""FLOPs of a step per token: of the model, of its parts, and of what is computed again."""

import math

from trainer.contract.config.job import Job
from trainer.contract.config.model import REMATERIALIZING, REPEATING_PRODUCTS, Offloaded
from trainer.contract.planning import lora
from trainer.contract.planning.array_plans import is_quantized
from trainer.contract.planning.parameter_shapes import norm_places
from trainer.contract.planning.plan import ArrayPlan, Plan
from trainer.contract.planning.teacher import of_teacher

LAST = (".down.kernel", f".down{lora.B}")
"""Name suffixes of the kernel and adapter matrix of a layer's last product."""
OFFLOADED_MODULES: dict[Offloaded, tuple[str, ...]] = {
    "layer_input": (),
    "qkv": ("query", "query_up", "key", "value", "key_value_up"),
    "attention_output": ("output",),
    "mlp_hidden": ("gate", "up"),
}
"""Modules of a layer whose products are offloaded, by the name in `model.offload`. The products of
routed experts never are."""


def flops_per_token(job: Job, plan: Plan) -> float:
    """Returns the FLOPs of forward and backward pass per token, by the causal convention.

    The count is 6 N + 6 L S H h. N counts the weights of matrix products that a token uses. It
    includes a tied output, whose embedding look-up is free, and of the experts only those that the
    token chooses. It excludes norms and biases. Frozen weights, which have no gradient, count 4 N.
    Attention's two products over S positions are 12 L S H h, where h is the mean width of a head's
    keys and values. They are halved because a position attends only to earlier ones; a window
    reduces them further. Recomputation by rematerialization is not counted. The forward pass of
    DPO's reference is, and that of a teacher.

    References:
        PaLM, appendix B (without the causal half): https://arxiv.org/abs/2204.02311
        Kaplan et al., section 2.1: https://arxiv.org/abs/2001.08361
    """
    kernels = _kernels(job, plan)
    frozen = [array for array in kernels if not array.is_trained]
    own = 6.0 * _met(job, kernels) - 2.0 * _met(job, frozen) + attention_flops_per_token(job)
    reference = 2.0 * (_met(job, frozen) + _attention(job)) if job.dpo else 0.0
    return own + reference + _teacher_flops_per_token(job, plan)


def _teacher_flops_per_token(job: Job, plan: Plan) -> float:
    """Returns the FLOPs per token of a teacher's forward pass; 0 without one."""
    found = of_teacher(job, plan)
    if found is None:
        return 0.0
    its_job, its_plan = found
    return 2.0 * (_met(its_job, _kernels(its_job, its_plan)) + _attention(its_job))


def output_flops_per_token(job: Job, plan: Plan) -> float:
    """Returns the FLOPs per token of the output product, which no stage of a pipeline repeats."""
    output = [one for one in _kernels(job, plan) if "layer" not in one.axes]
    frozen = [one for one in output if not one.is_trained]
    return 6.0 * _met(job, output) - 2.0 * _met(job, frozen)


def quantized_flops_per_token(job: Job, plan: Plan) -> float:
    """Returns the FLOPs per token of products in 8 bits, with recomputation; 0 without any."""
    if plan.precision is None:
        return 0.0
    kernels = [array for array in _kernels(job, plan) if is_quantized(array, plan)]
    frozen = [array for array in kernels if not array.is_trained]
    repeated = _again(job, plan) if job.decoder.remat != "none" else []
    again = [array for array in repeated if is_quantized(array, plan)]
    reference = 2.0 * _met(job, frozen) if job.dpo else 0.0
    own = 6.0 * _met(job, kernels) - 2.0 * _met(job, frozen)
    return own + 2.0 * _met(job, again) + reference


def attention_flops_per_token(job: Job) -> float:
    """Returns the FLOPs per token of attention's products in both passes; see `flops_per_token`."""
    return 6.0 * _attention(job)


def recomputed_flops_per_token(job: Job, plan: Plan) -> float:
    """Returns the FLOPs per token of the forward pass that the backward pass recomputes.

    `dots` recomputes products that are not of rows and a single matrix: those of experts, and
    attention's two, unless a kernel computes them. `full` recomputes all products of the layers
    that are not offloaded, and `attention` these without attention's two, if a kernel computes
    them. None recomputes a layer's last product unless a norm follows it: no other gradient needs
    its result.
    """
    if job.decoder.remat == "none":
        return 0.0
    attention = 2.0 * _attention(job) if recomputes_attention(job, plan) else 0.0
    return 2.0 * _met(job, _again(job, plan)) + attention


def recomputes_attention(job: Job, plan: Plan) -> bool:
    """Returns whether the backward pass computes the mixed values of attention again.

    `dots` and `attention` keep what kernels return. Elsewhere they would have to keep all scores.
    """
    remat = job.decoder.remat
    return remat == "full" or (remat in REMATERIALIZING and plan.attention == "reference")


def _again(job: Job, plan: Plan) -> list[ArrayPlan]:
    """Returns the weights whose products rematerialization repeats, for all policies but `none`."""
    unread = () if norm_places(job.decoder)[1] else LAST
    offloaded = {module for name in job.decoder.offload for module in OFFLOADED_MODULES[name]}
    return [
        array
        for array in _kernels(job, plan)
        if "layer" in array.axes
        and not array.name.endswith(unread)
        and (
            "expert" in array.axes
            or (
                job.decoder.remat in REPEATING_PRODUCTS
                and offloaded.isdisjoint(array.name.split("."))
            )
        )
    ]


def expert_flops_per_token(job: Job, plan: Plan) -> float:
    """Returns the FLOPs per token of the experts that it chooses, with recomputation; 0 without."""
    repeated = _again(job, plan) if job.decoder.remat != "none" else []
    kernels = [array for array in _kernels(job, plan) if "expert" in array.axes]
    again = [array for array in repeated if "expert" in array.axes]
    return 6.0 * _met(job, kernels) + 2.0 * _met(job, again)


def _kernels(job: Job, plan: Plan) -> list[ArrayPlan]:
    """Returns the weights of matrix products."""
    is_tied = job.decoder.tied_embeddings
    return [
        array
        for array in plan.parameters
        if array.name.endswith((lora.KERNEL, lora.A, lora.B))
        or (is_tied and array.name == "embedding.table")
    ]


def _met(job: Job, arrays: list[ArrayPlan]) -> float:
    """Returns the number of weights in `arrays` that a token uses."""
    experts = job.decoder.moe
    share = experts.top_k / experts.count if experts else 1.0
    return sum(
        math.prod(array.shape) * (share if "expert" in array.axes else 1.0) for array in arrays
    )


def _attention(job: Job) -> float:
    """Returns S H h summed over layers, where h is the mean width of a head's keys and values.

    S is twice the mean number of positions that a position of the layer attends to.
    """
    model, length = job.decoder, job.data.seq_len
    windows = [min(model.window_of(layer) or length, length) for layer in range(model.layers)]
    seen = sum(window * (2 - window / length) for window in windows)
    return seen * model.heads * (model.head_dim + model.value_dim) / 2
