"""Lower bounds of a step's time, from the plan and the chips' specifications. Pure Python.

A step takes at least as long as each of three parts, even when they overlap perfectly. The parts
are its arithmetic at peak, its weights, moments and kept activations through HBM, and its
collectives over all links together. Of a teacher, only the arithmetic counts. Everything else that
a program does (other activations through HBM, collectives that it waits for) makes it slower, never
faster.

References:
    Williams, Waterman, Patterson, "Roofline: an insightful visual performance model for multicore
    architectures", CACM 52(4), 2009.
"""

import math
from dataclasses import dataclass
from typing import Literal

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model, Offloaded
from trainer.contract.estimates.activations import (
    by_layers,
    least_kept_per_token,
    offloaded_per_token,
)
from trainer.contract.planning import (
    accelerators,
    lora,
    mesh_layout,
    optimizer_state,
    pipeline,
    sharding_rules,
)
from trainer.contract.planning.array_plans import DTYPE_BYTES
from trainer.contract.planning.parameter_shapes import capacity, norm_places
from trainer.contract.planning.plan import ArrayPlan, Plan, World
from trainer.contract.planning.teacher import of_teacher

USES = 2
"""Uses of a weight in a micro-batch: forward and backward."""
GATHERS_AND_SCATTERS = 3
"""Collectives of a weight in a micro-batch: a gather per use, and a scatter of its gradient."""
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
EXCHANGES_PER_LAYER = 4
"""Exchanges of tokens with experts on other devices: there and back, in both passes."""
SUMS_OVER_STAGES = 4
"""All-reduces of a micro-batch's activations over the stages of a pipeline: of the embeddings, the
features, and their gradients. The stages share the vocabulary."""
ALL_REDUCES_PER_LAYER = 4
"""All-reduces under tensor parallelism: after attention and feed-forward, in both passes.

See Megatron-LM, section 3, https://arxiv.org/abs/1909.08053. With latent attention, the one of
attention's backward pass is of the latents: see `summed_bytes`.
"""


@dataclass(frozen=True)
class Bounds:
    """Bounds of one step on all devices, in seconds. A multiply-add counts as two FLOPs."""

    model_flops: float
    program_flops: float
    """FLOPs of the step, recomputation by rematerialization included."""
    compute_s: float
    """Seconds of arithmetic at peak, and those in which a stage of a pipeline is idle."""
    hbm_s: float
    ici_s: float
    """Seconds over the links of an island: a slice of TPUs, a host of GPUs."""
    dcn_s: float
    """Seconds over the network between islands; 0 when its bandwidth is unknown."""
    peak_flops: float
    """Peak FLOP/s of all devices in bfloat16."""
    saved_flops: float
    """FLOPs in bfloat16 that would take as long as products in 8 bits save."""
    tokens: int

    @property
    def link_s(self) -> float:
        """Seconds over links and network, whose transfers overlap."""
        return max(self.ici_s, self.dcn_s)

    @property
    def step_s(self) -> float:
        return max(self.compute_s, self.hbm_s, self.link_s)

    @property
    def binds(self) -> str:
        """Name of the resource that takes the longest."""
        times = {"compute": self.compute_s, "HBM": self.hbm_s, "links": self.link_s}
        return max(times, key=lambda name: times[name])

    @property
    def mfu(self) -> float:
        """Model FLOPs utilization of a step that takes `step_s`: PaLM, appendix B.

        Relative to the peak in bfloat16, also with products in 8 bits.
        """
        return self.model_flops / self.step_s / self.peak_flops

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.step_s


Link = Literal["ici", "dcn"]
"""`ici`: links inside an island; `dcn`: the network between islands."""


@dataclass(frozen=True)
class Traffic:
    """The least traffic of a step's collectives along one mesh axis over one kind of link."""

    axis: str
    """`data` includes gradients that are also summed over `expert` or `context`."""
    link: Link
    bytes: float
    """Bytes that a device sends over its links, or that a host sends over the network."""


def bounds(job: Job, plan: Plan) -> Bounds | None:
    """Returns the bounds of a step on the real accelerator.

    Returns None on CPU devices, whose specifications are unknown, and for a custom model, whose
    computation is unknown.
    """
    world = plan.world
    is_known = isinstance(job.model, Model) and not world.on_cpu
    chip = None if not is_known else accelerators.parse(world.accelerator)
    if chip is None or not (chip.peak_bf16_flops and chip.hbm_bytes_per_s and chip.ici_bytes_per_s):
        return None
    tokens = job.data.global_batch * job.data.seq_len
    model = tokens * flops_per_token(job, plan)
    program = model + tokens * _recomputed_per_token(job, plan)
    peak = chip.peak_bf16_flops * world.devices
    # Products in 8 bits take the time of fewer FLOPs in bfloat16.
    faster = chip.peak_flops(plan.precision) or chip.peak_bf16_flops
    saved = tokens * quantized_flops_per_token(job, plan) * (1 - chip.peak_bf16_flops / faster)
    # While a stage of a pipeline is idle, its devices have nothing else to do.
    of_layers = program - saved - tokens * output_flops_per_token(job, plan)
    compute = program - saved + of_layers * (pipeline.stretch(plan) - 1)
    ici_bytes, dcn_bytes = sum(_ici_bytes(job, plan).values()), sum(_dcn_bytes(job, plan).values())
    dcn_s = dcn_bytes / chip.dcn_bytes_per_s if chip.dcn_bytes_per_s else 0.0
    return Bounds(
        model_flops=model, program_flops=program, compute_s=compute / peak,
        hbm_s=_hbm_bytes(job, plan) / chip.hbm_bytes_per_s,
        ici_s=ici_bytes / chip.ici_bytes_per_s, dcn_s=dcn_s, peak_flops=peak,
        saved_flops=saved, tokens=tokens,
    )  # fmt: skip


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
    kernels = [array for array in _kernels(job, plan) if _is_quantized(array)]
    frozen = [array for array in kernels if not array.is_trained]
    repeated = _again(job, plan) if job.decoder.remat != "none" else []
    again = [array for array in repeated if _is_quantized(array)]
    reference = 2.0 * _met(job, frozen) if job.dpo else 0.0
    own = 6.0 * _met(job, kernels) - 2.0 * _met(job, frozen)
    return own + 2.0 * _met(job, again) + reference


def _is_quantized(array: ArrayPlan) -> bool:
    """Returns whether `model.precision` applies to a kernel: to those of layers, except routers."""
    is_kernel = "layer" in array.axes and array.name.endswith(lora.KERNEL)
    return is_kernel and "router" not in array.axes


def attention_flops_per_token(job: Job) -> float:
    """Returns the FLOPs per token of attention's products in both passes; see `flops_per_token`."""
    return 6.0 * _attention(job)


def _recomputed_per_token(job: Job, plan: Plan) -> float:
    """Returns the FLOPs per token of the forward pass that the backward pass recomputes.

    `dots` recomputes products that are not of rows and a single matrix: those of experts, and
    attention's two, unless a kernel computes them. `full` recomputes all products of the layers
    that are not offloaded.
    Neither recomputes a layer's last product unless a norm follows it: no other gradient needs its
    result.
    """
    if job.decoder.remat == "none":
        return 0.0
    attention = 2.0 * _attention(job) if recomputes_attention(job, plan) else 0.0
    return 2.0 * _met(job, _again(job, plan)) + attention


def recomputes_attention(job: Job, plan: Plan) -> bool:
    """Returns whether the backward pass computes the mixed values of attention again.

    `dots` keeps what kernels return. Elsewhere it would have to keep all scores.
    """
    remat = job.decoder.remat
    return remat == "full" or (remat == "dots" and plan.attention == "reference")


def _again(job: Job, plan: Plan) -> list[ArrayPlan]:
    """Returns the weights whose products rematerialization repeats, for `dots` and `full`."""
    unread = () if norm_places(job.decoder)[1] else LAST
    offloaded = {module for name in job.decoder.offload for module in OFFLOADED_MODULES[name]}
    return [
        array
        for array in _kernels(job, plan)
        if "layer" in array.axes
        and not array.name.endswith(unread)
        and (
            "expert" in array.axes
            or (job.decoder.remat == "full" and offloaded.isdisjoint(array.name.split(".")))
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
    return sum(_size(array) * (share if "expert" in array.axes else 1.0) for array in arrays)


def _attention(job: Job) -> float:
    """Returns S H h summed over layers, where h is the mean width of a head's keys and values.

    S is twice the mean number of positions that a position of the layer attends to.
    """
    model, length = job.decoder, job.data.seq_len
    windows = [min(model.window_of(layer) or length, length) for layer in range(model.layers)]
    seen = sum(window * (2 - window / length) for window in windows)
    return seen * model.heads * (model.head_dim + model.value_dim) / 2


def _hbm_bytes(job: Job, plan: Plan) -> float:
    """Returns the HBM bytes per device: the update of its shards, weights read, and activations.

    Activations kept for the backward pass are written once and read once.
    """
    shards = sum(array.bytes_per_device for array in plan.trained)
    read = sum(
        pipeline.uses(array, plan)
        * own_bytes(array, plan)
        * (plan.mesh["fsdp"] if "fsdp" in array.spec else 1)
        for array in plan.parameters
        if not array.name.endswith(".table")
    )
    tokens = plan.batch.tokens_per_device
    kept = tokens * by_layers(job, plan, layer_runs(job, plan), least_kept_per_token)
    # An update reads and writes a parameter and its moments.
    state = shards + optimizer_state.bytes_per_device(job.optimizer, plan)
    return 2 * state + USES * (read + kept)


def offloaded_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes that a device copies to its host's memory in a step, and as many back.

    Returns 0 for a custom model, which has no names to offload.
    """
    if not isinstance(job.model, Model):
        return 0
    per_token = by_layers(job, plan, layer_runs(job, plan), offloaded_per_token)
    return plan.batch.tokens_per_device * per_token


def layer_runs(job: Job, plan: Plan) -> int:
    """Returns the layers that a device runs in each pass, counted once per run."""
    of_tick = job.decoder.layers // (plan.mesh["pipeline"] * plan.pipeline_rounds)
    return of_tick * pipeline.ticks_of(plan)


def traffic(job: Job, plan: Plan) -> list[Traffic]:
    """Returns the least traffic of a step by axis and link; empty for a custom model."""
    if not isinstance(job.model, Model):
        return []
    links: dict[Link, dict[str, float]] = {
        "ici": _ici_bytes(job, plan),
        "dcn": _dcn_bytes(job, plan),
    }
    return [
        Traffic(axis, link, size)
        for link, sizes in links.items()
        for axis, size in sizes.items()
        if size
    ]


def _ici_bytes(job: Job, plan: Plan) -> dict[str, float]:
    """Returns mesh axis -> the bytes that a device sends over the links of its island.

    A ring over n devices moves (n - 1) / n of an array to gather or scatter it, and twice that to
    give all devices the sum.

    References:
        Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
        J. Parallel Distrib. Comput. 69(2), 2009.
    """
    islands_pipeline, islands_data, islands_fsdp = _islands(plan.world, plan.mesh)
    fsdp, data = plan.mesh["fsdp"] // islands_fsdp, plan.mesh["data"] // islands_data
    weights = gradients = 0.0
    for array in plan.parameters:
        own = own_bytes(array, plan)
        if "fsdp" in array.spec:
            weights += moves(array) * pipeline.uses(array, plan) * own * (fsdp - 1)
        if array.is_trained:
            gradients += 2 * own * (data * alike(array, plan) - 1) / (data * alike(array, plan))
    tensor = plan.mesh["tensor"]
    sums = layer_runs(job, plan) * summed_bytes(job, plan)
    return {
        "pipeline": passed_on(job, plan, plan.mesh["pipeline"] // islands_pipeline),
        "data": gradients,
        "fsdp": weights,
        "expert": to_experts(job, plan),
        "context": keys_and_values(job, plan),
        "tensor": 2 * sums * (tensor - 1) / tensor,
    }


def activation_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes on a device of the residual stream of a micro-batch."""
    width = job.decoder.d_model * DTYPE_BYTES[plan.compute_dtype]
    return plan.batch.tokens_per_device * width


def summed_bytes(job: Job, plan: Plan) -> int:
    """Returns the bytes on a device of what a layer sums over the tensor axis in both passes.

    The gradient of latent attention is summed where the heads' kernels read latents, in place of
    the residual stream.
    """
    model, whole = job.decoder, ALL_REDUCES_PER_LAYER * activation_bytes(job, plan)
    if (latent := model.latent_attention) is None:
        return whole
    width = (latent.query_rank or model.d_model) + latent.rank + latent.rotary_dim
    own = plan.batch.tokens_per_device * DTYPE_BYTES[plan.compute_dtype]
    return whole + own * (width - model.d_model)


def passed_on(job: Job, plan: Plan, stages: int) -> float:
    """Returns the bytes that a device sends to pass activations through that number of stages.

    In every tick of each pass, a stage sends its results to the next one.
    """
    if stages == 1:
        return 0.0
    sums = SUMS_OVER_STAGES * plan.batch.grad_accum_steps * 2 * (stages - 1) / stages
    return (USES * pipeline.ticks_of(plan) + sums) * activation_bytes(job, plan)


def alike(array: ArrayPlan, plan: Plan) -> int:
    """Returns the number of devices along `expert` and `context` with the same part of a parameter.

    Each has a part of its gradient. Along `pipeline`, all of them have the same one.
    """
    return math.prod(plan.mesh[axis] for axis in ("expert", "context") if axis not in array.spec)


def to_experts(job: Job, plan: Plan) -> float:
    """Returns the bytes that a device sends to remote experts and back, in both passes."""
    experts, axis, length = job.decoder.moe, plan.mesh["expert"], job.data.seq_len
    if experts is None:
        return 0.0
    batch, width = plan.batch, job.decoder.d_model * DTYPE_BYTES[plan.compute_dtype]
    slots = batch.rows_per_device * experts.count * capacity(experts, length) / axis
    sent = batch.tokens_per_device if plan.moe == "ragged" else slots
    layers = job.decoder.layers
    runs = layer_runs(job, plan) * (layers - experts.dense_layers) // layers
    return EXCHANGES_PER_LAYER * runs * sent * width * (axis - 1)


def keys_and_values(job: Job, plan: Plan) -> float:
    """Returns the bytes that a device sends for attention along each sequence.

    Keys and values are gathered for each pass, and their gradients are scattered. If the tensor
    axis does not split them, the gradients are those of each query head's copy. By heads, queries,
    keys, values and results are exchanged in each pass, and their gradients once.
    """
    model, axis, tensor = job.decoder, plan.mesh["context"], plan.mesh["tensor"]
    if plan.batch.chunks == 1:
        return _exchanged_heads(job, plan)
    is_split = model.kv_heads % tensor == 0
    gathered = model.kv_heads // tensor if is_split else model.kv_heads
    scattered = gathered if is_split else model.heads // tensor
    passes = 1 if model.remat == "none" else 2
    own = plan.batch.tokens_per_device * (model.head_dim + model.value_dim)
    arrays = layer_runs(job, plan) * (passes * gathered + scattered)
    return float(arrays * own * DTYPE_BYTES[plan.compute_dtype] * (axis - 1))


def _exchanged_heads(job: Job, plan: Plan) -> float:
    model, axis = job.decoder, plan.mesh["context"]
    heads = (model.heads + model.kv_heads) // plan.mesh["tensor"]
    width = (model.head_dim + model.value_dim) * DTYPE_BYTES[plan.compute_dtype]
    own = plan.batch.tokens_per_device * heads * width
    passes = 2 if model.remat == "none" else 3
    return layer_runs(job, plan) * passes * own * (axis - 1) / axis


def _dcn_bytes(job: Job, plan: Plan) -> dict[str, float]:
    """Returns mesh axis -> the bytes that a host sends over the network to other islands.

    Each island receives once the parts that it lacks of weights split over islands. It sends and
    receives the gradients that islands sum, and the activations that pass through them.
    """
    islands_pipeline, islands_data, islands_fsdp = _islands(plan.world, plan.mesh)
    hosts = plan.world.processes // (islands_pipeline * islands_data * islands_fsdp)
    weights = gradients = 0.0
    for array in plan.parameters:
        shared = islands_pipeline if sharding_rules.is_split_by("pipeline", array.spec) else 1
        whole = _size(array) / shared * DTYPE_BYTES[plan.compute_dtype]
        if "fsdp" in array.spec:
            times = moves(array) * pipeline.uses(array, plan)
            weights += times * whole * (islands_fsdp - 1) / islands_fsdp
        if array.is_trained:
            gradients += 2 * whole / islands_fsdp * (islands_data - 1) / islands_data
    activations = plan.world.devices_per_host * passed_on(job, plan, islands_pipeline)
    return {"pipeline": activations, "data": gradients / hosts, "fsdp": weights / hosts}


def _islands(world: World, mesh: dict[str, int]) -> tuple[int, int, int]:
    """Returns the numbers of islands that `pipeline`, `data` and `fsdp` span."""
    islands = world.slices if world.platform == "tpu" else world.processes
    return mesh_layout.over_islands(mesh, islands)


def own_bytes(array: ArrayPlan, plan: Plan) -> int:
    """Returns the bytes of a device's shard in the dtype of products and collectives."""
    kept, used = DTYPE_BYTES[array.dtype], DTYPE_BYTES[plan.compute_dtype]
    return array.bytes_per_device * used // kept


def moves(array: ArrayPlan) -> int:
    """Returns the collectives of a weight over `fsdp` in a micro-batch: gathers and a scatter."""
    return GATHERS_AND_SCATTERS if array.is_trained else USES


def _size(array: ArrayPlan) -> int:
    return math.prod(array.shape)
