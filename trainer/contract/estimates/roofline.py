"""How fast a step can be at best: bounds from the plan and the facts of the chips, in pure Python.

No step is faster than its arithmetic at the peak, than its weights, its moments and what waits for
the backward pass through HBM, and than its collectives over all links at once, even where the three
overlap perfectly. What else a program does (other activations through HBM, collectives that it
waits for) makes it slower, never faster.
"""

import math
from dataclasses import dataclass

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.estimates.activations import least_kept_per_token
from trainer.contract.planning import accelerators, lora, optimizer_state, sharding_rules
from trainer.contract.planning.parameter_shapes import room
from trainer.contract.planning.plan import ArrayPlan, Plan, World
from trainer.contract.planning.planner import DTYPE_BYTES

USES = 2
"""Of a weight in a micro-batch: forward and backward."""
GATHERS_AND_SCATTERS = 3
"""Of a weight in a micro-batch: gathered for each use, its gradient scattered."""
LAST = (".down.kernel", f".down{lora.B}")
"""What a layer ends with."""
EXCHANGES_PER_LAYER = 4
"""Of tokens with experts elsewhere: there and back, in both directions."""
ALL_REDUCES_PER_LAYER = 4
"""Of activations under tensor parallelism: after attention and feed-forward, in both directions."""


@dataclass(frozen=True)
class Bounds:
    """Of one step on all devices. Seconds; FLOPs count a multiplication and an addition as two."""

    model_flops: float
    program_flops: float
    """With what rematerialization does again."""
    compute_s: float
    hbm_s: float
    ici_s: float
    """Over the links of an island: a slice of TPUs, a host of GPUs."""
    dcn_s: float
    """Over the network between islands; 0 where its bandwidth is not known."""
    peak_flops: float
    """Of all devices, per second."""
    tokens: int

    @property
    def link_s(self) -> float:
        """What passes inside an island does not wait for what passes between them."""
        return max(self.ici_s, self.dcn_s)

    @property
    def step_s(self) -> float:
        return max(self.compute_s, self.hbm_s, self.link_s)

    @property
    def serial_s(self) -> float:
        """If nothing overlapped: what tells steps apart that one and the same thing binds."""
        return self.compute_s + self.hbm_s + self.link_s

    @property
    def binds(self) -> str:
        """What a step spends the longest on."""
        times = {"compute": self.compute_s, "HBM": self.hbm_s, "links": self.link_s}
        return max(times, key=lambda name: times[name])

    @property
    def mfu(self) -> float:
        return self.model_flops / self.step_s / self.peak_flops

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.step_s


def bounds(job: Job, plan: Plan) -> Bounds | None:
    """Of a step on the real accelerator.

    None on CPU devices, of which no facts are known, and of a model of the user's own, of which it
    is not known how it computes.
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
    dcn_s = _dcn_bytes(plan) / chip.dcn_bytes_per_s if chip.dcn_bytes_per_s else 0.0
    return Bounds(
        model_flops=model, program_flops=program, compute_s=program / peak,
        hbm_s=_hbm_bytes(job, plan) / chip.hbm_bytes_per_s,
        ici_s=_ici_bytes(job, plan) / chip.ici_bytes_per_s, dcn_s=dcn_s, peak_flops=peak,
        tokens=tokens,
    )  # fmt: skip


def flops_per_token(job: Job, plan: Plan) -> float:
    """FLOPs of forward and backward pass per token, by the causal convention.

    6 N + 6 L S H h: N counts the weights of matrix products that a token meets (the output's too
    where it is tied to the embedding, whose look-up is free; of experts those of its choice; no
    norms and biases), and is 4 N of those that adapters are beside, which have no gradient of their
    own; attention's two products over S positions are 12 L S H h, halved because a
    position sees only those before it, and in a window fewer. Work done again by rematerialization
    is not counted.
    """
    kernels = _kernels(job, plan)
    frozen = [array for array in kernels if not array.is_trained]
    return 6.0 * _met(job, kernels) - 2.0 * _met(job, frozen) + 6.0 * _attention(job)


def _recomputed_per_token(job: Job, plan: Plan) -> float:
    """FLOPs of the forward pass that the backward pass does again.

    With `dots` those that are of more than rows and one matrix: attention's two, and those of
    experts; with `full` all products of the layers. Never the last one, which no gradient needs the
    result of.
    """
    if job.decoder.remat == "none":
        return 0.0
    again = [
        array
        for array in _kernels(job, plan)
        if array.name.startswith("layers.")
        and not array.name.endswith(LAST)
        and (job.decoder.remat == "full" or "expert" in array.axes)
    ]
    return 2.0 * _met(job, again) + 2.0 * _attention(job)


def _kernels(job: Job, plan: Plan) -> list[ArrayPlan]:
    """The weights of matrix products."""
    is_tied = job.decoder.tied_embeddings
    return [
        array
        for array in plan.parameters
        if array.name.endswith((lora.KERNEL, lora.A, lora.B))
        or (is_tied and array.name == "embedding.table")
    ]


def _met(job: Job, arrays: list[ArrayPlan]) -> float:
    """Weights of them that a token meets."""
    experts = job.decoder.experts
    share = experts.per_token / experts.count if experts else 1.0
    return sum(_size(array) * (share if "expert" in array.axes else 1.0) for array in arrays)


def _attention(job: Job) -> float:
    """L S H h, with twice the positions that one sees in the mean for S."""
    model, length = job.decoder, job.data.seq_len
    window = min(model.window or length, length)
    return model.layers * window * (2 - window / length) * model.heads * model.head_dim


def _hbm_bytes(job: Job, plan: Plan) -> float:
    """Per device: the update of its shards, the weights that its products read, and what is kept.

    Activations that wait for the backward pass are written once and read once.
    """
    shards = sum(array.bytes_per_device for array in plan.trained)
    read = sum(
        own_bytes(array, plan) * (plan.mesh["fsdp"] if "fsdp" in array.spec else 1)
        for array in plan.parameters
        if not array.name.endswith(".table")
    )
    batch = plan.batch
    tokens = batch.tokens_per_device * batch.micro_batches
    kept = job.decoder.layers * tokens * least_kept_per_token(job, plan)
    # An update moves a parameter and its moments, in and out.
    state = shards + optimizer_state.bytes_per_device(job.optimizer, plan)
    return 2 * state + USES * (batch.micro_batches * read + kept)


def _ici_bytes(job: Job, plan: Plan) -> float:
    """Per device over the links of its island.

    A ring moves (n - 1) / n of an array of which n devices each have a part, twice that where they
    all are to have the sum.
    """
    islands_data, islands_fsdp = _islands(plan.world, plan.mesh)
    fsdp, data = plan.mesh["fsdp"] // islands_fsdp, plan.mesh["data"] // islands_data
    total = 0.0
    for array in plan.parameters:
        own = own_bytes(array, plan)
        if "fsdp" in array.spec:
            total += moves(array) * plan.batch.micro_batches * own * (fsdp - 1)
        if array.is_trained:
            total += 2 * own * (data * alike(array, plan) - 1) / (data * alike(array, plan))
    tensor, batch = plan.mesh["tensor"], plan.batch
    tokens = batch.tokens_per_device * batch.micro_batches
    width = job.decoder.d_model * DTYPE_BYTES[plan.compute_dtype]
    sums = ALL_REDUCES_PER_LAYER * job.decoder.layers * tokens * width
    others = to_experts(job, plan) + keys_and_values(job, plan)
    return total + 2 * sums * (tensor - 1) / tensor + others


def alike(array: ArrayPlan, plan: Plan) -> int:
    """Devices along the rare axes with the same part of a parameter."""
    return math.prod(plan.mesh[axis] for axis in sharding_rules.RARE_AXES if axis not in array.spec)


def to_experts(job: Job, plan: Plan) -> float:
    """Bytes that a device sends to experts elsewhere and back, in both directions."""
    experts, axis, length = job.decoder.experts, plan.mesh["expert"], job.data.seq_len
    if experts is None:
        return 0.0
    batch, width = plan.batch, job.decoder.d_model * DTYPE_BYTES[plan.compute_dtype]
    places = batch.rows_per_device * experts.count * room(experts, length) / axis
    sent = batch.tokens_per_device if plan.experts == "ragged" else places
    exchanges = EXCHANGES_PER_LAYER * job.decoder.layers * batch.micro_batches
    return exchanges * sent * width * (axis - 1)


def keys_and_values(job: Job, plan: Plan) -> float:
    """Bytes that a device sends so that all that share a sequence have its keys and values.

    Gathered for each pass, their gradients scattered. Where the tensor axis does not split them,
    the gradients are of the copies that each query head has of them.
    """
    model, axis, tensor = job.decoder, plan.mesh["context"], plan.mesh["tensor"]
    is_split = model.kv_heads % tensor == 0
    gathered = model.kv_heads // tensor if is_split else model.kv_heads
    scattered = gathered if is_split else model.heads // tensor
    passes = 1 if model.remat == "none" else 2
    own = 2 * plan.batch.tokens_per_device * plan.batch.micro_batches * model.head_dim
    arrays = model.layers * (passes * gathered + scattered)
    return float(arrays * own * DTYPE_BYTES[plan.compute_dtype] * (axis - 1))


def _dcn_bytes(plan: Plan) -> float:
    """Per host over the network to other islands.

    Of weights that islands share, each must get once what it does not have; of gradients each must
    send and get what the others are to add.
    """
    islands_data, islands_fsdp = _islands(plan.world, plan.mesh)
    hosts = plan.world.processes // (islands_data * islands_fsdp)
    total = 0.0
    for array in plan.parameters:
        whole = _size(array) * DTYPE_BYTES[plan.compute_dtype]
        if "fsdp" in array.spec:
            times = moves(array) * plan.batch.micro_batches
            total += times * whole * (islands_fsdp - 1) / islands_fsdp
        if array.is_trained:
            total += 2 * whole / islands_fsdp * (islands_data - 1) / islands_data
    return total / hosts


def _islands(world: World, mesh: dict[str, int]) -> tuple[int, int]:
    """Over how many islands `data` and `fsdp` go."""
    islands = world.slices if world.platform == "tpu" else world.processes
    over_data = math.gcd(mesh["data"], islands)
    return over_data, islands // over_data


def own_bytes(array: ArrayPlan, plan: Plan) -> int:
    """Of a device's shard, in the type that products and collectives use."""
    kept, used = DTYPE_BYTES[array.dtype], DTYPE_BYTES[plan.compute_dtype]
    return array.bytes_per_device * used // kept


def moves(array: ArrayPlan) -> int:
    """Of a weight in a micro-batch over `fsdp`: gathered for each use, its gradient scattered."""
    return GATHERS_AND_SCATTERS if array.is_trained else USES


def _size(array: ArrayPlan) -> int:
    return math.prod(array.shape)
