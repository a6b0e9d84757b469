"""The least traffic of a step's collectives, by mesh axis and kind of link."""

import math
from dataclasses import dataclass
from typing import Literal

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.planning import mesh_layout, pipeline, sharding_rules
from trainer.contract.planning.array_plans import DTYPE_BYTES, is_quantized
from trainer.contract.planning.parameter_shapes import capacity
from trainer.contract.planning.pipeline import layer_runs
from trainer.contract.planning.plan import ArrayPlan, Plan, World

USES = 2
"""Uses of a weight in a micro-batch: forward and backward."""
EXCHANGES_PER_LAYER = 4
"""Exchanges of tokens with experts on other devices: there and back, in both passes."""
EXCHANGES_AGAIN = {"capacity": 2, "ragged": 1, "megablox": 1, "megablox_exchange": 2}
"""Exchanges of a layer that rematerialization repeats, by the method of expert products. Where
tokens are gathered, their weights are applied before the way back: nothing needs that again."""
SUMS_OVER_STAGES = 4
"""All-reduces of a micro-batch's activations over the stages of a pipeline: of the embeddings, the
features, and their gradients. The stages share the vocabulary."""
ALL_REDUCES_PER_LAYER = 4
"""All-reduces under tensor parallelism: after attention and feed-forward, in both passes.

See Megatron-LM, section 3, https://arxiv.org/abs/1909.08053. With latent attention, the one of
attention's backward pass is of the latents: see `summed_bytes`.
"""
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


def traffic(job: Job, plan: Plan) -> list[Traffic]:
    """Returns the least traffic of a step by axis and link; empty for a custom model."""
    if not isinstance(job.model, Model):
        return []
    links: dict[Link, dict[str, float]] = {
        "ici": ici_bytes_by_axis(job, plan),
        "dcn": dcn_bytes_by_axis(job, plan),
    }
    return [
        Traffic(axis, link, size)
        for link, sizes in links.items()
        for axis, size in sizes.items()
        if size
    ]


def ici_bytes_by_axis(job: Job, plan: Plan) -> dict[str, float]:
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
            weights += pipeline.uses(array, plan) * moved_bytes(array, plan) * (fsdp - 1)
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

    In every tick of each pass, a stage sends its results to the next one. Where passes alternate,
    embeddings and their gradients are summed in the ticks of a pass, and once more.
    """
    if stages == 1:
        return 0.0
    sums = SUMS_OVER_STAGES * plan.batch.grad_accum_steps
    if pipeline.alternates(plan):
        sums += SUMS_OVER_STAGES // 2 * plan.mesh["pipeline"]
    sums *= 2 * (stages - 1) / stages
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
    rows = batch.tokens_per_device * experts.top_k / axis
    sent = {"capacity": slots, "megablox_exchange": rows}.get(plan.moe, batch.tokens_per_device)
    layers = job.decoder.layers
    runs = layer_runs(job, plan) * (layers - experts.dense_layers) // layers
    again = EXCHANGES_AGAIN[plan.moe] if job.decoder.remat != "none" else 0
    return (EXCHANGES_PER_LAYER + again) * runs * sent * width * (axis - 1)


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


def dcn_bytes_by_axis(job: Job, plan: Plan) -> dict[str, float]:
    """Returns mesh axis -> the bytes that a host sends over the network to other islands.

    Each island receives once the parts that it lacks of weights split over islands. It sends and
    receives the gradients that islands sum, and the activations that pass through them.
    """
    islands_pipeline, islands_data, islands_fsdp = _islands(plan.world, plan.mesh)
    hosts = plan.world.hosts // (islands_pipeline * islands_data * islands_fsdp)
    weights = gradients = 0.0
    for array in plan.parameters:
        shared = islands_pipeline if sharding_rules.is_split_by("pipeline", array.spec) else 1
        whole = math.prod(array.shape) / shared * DTYPE_BYTES[plan.compute_dtype]
        if "fsdp" in array.spec:
            shards = whole / own_bytes(array, plan)
            times = pipeline.uses(array, plan) * moved_bytes(array, plan)
            weights += times * shards * (islands_fsdp - 1) / islands_fsdp
        if array.is_trained:
            gradients += 2 * whole / islands_fsdp * (islands_data - 1) / islands_data
    activations = plan.world.devices_per_host * passed_on(job, plan, islands_pipeline)
    return {"pipeline": activations, "data": gradients / hosts, "fsdp": weights / hosts}


def _islands(world: World, mesh: dict[str, int]) -> tuple[int, int, int]:
    """Returns the numbers of islands that `pipeline`, `data` and `fsdp` span."""
    islands = world.slices if world.platform == "tpu" else world.hosts
    return mesh_layout.over_islands(mesh, islands)


def own_bytes(array: ArrayPlan, plan: Plan) -> int:
    """Returns the bytes of a device's shard in the dtype of products and collectives."""
    kept, used = DTYPE_BYTES[array.dtype], DTYPE_BYTES[plan.compute_dtype]
    return array.bytes_per_device * used // kept


def read_bytes(array: ArrayPlan, plan: Plan) -> int:
    """Returns the bytes of a device's shard in the dtype in which products read it."""
    narrower = DTYPE_BYTES[plan.compute_dtype] if is_quantized(array, plan) else 1
    return own_bytes(array, plan) // narrower


def moved_bytes(array: ArrayPlan, plan: Plan) -> int:
    """Returns the bytes of a device's shard in all collectives over `fsdp` of a micro-batch.

    They are a gather per use, and a scatter of its gradient.
    """
    gradient = own_bytes(array, plan) if array.is_trained else 0
    return USES * read_bytes(array, plan) + gradient
