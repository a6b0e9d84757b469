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

from dataclasses import dataclass

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.estimates.activations import by_layers, least_kept_per_token
from trainer.contract.estimates.flops import (
    flops_per_token,
    output_flops_per_token,
    quantized_flops_per_token,
    recomputed_flops_per_token,
)
from trainer.contract.estimates.traffic import (
    USES,
    dcn_bytes_by_axis,
    ici_bytes_by_axis,
    read_bytes,
)
from trainer.contract.planning import accelerators, optimizer_state, pipeline
from trainer.contract.planning.pipeline import layer_runs
from trainer.contract.planning.plan import Plan


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
    program = model + tokens * recomputed_flops_per_token(job, plan)
    peak = chip.peak_bf16_flops * world.devices
    # Products in 8 bits take the time of fewer FLOPs in bfloat16.
    faster = chip.peak_flops(plan.precision) or chip.peak_bf16_flops
    saved = tokens * quantized_flops_per_token(job, plan) * (1 - chip.peak_bf16_flops / faster)
    # While a stage of a pipeline is idle, its devices have nothing else to do.
    of_layers = program - saved - tokens * output_flops_per_token(job, plan)
    compute = program - saved + of_layers * (pipeline.stretch(plan) - 1)
    ici_bytes = sum(ici_bytes_by_axis(job, plan).values())
    dcn_bytes = sum(dcn_bytes_by_axis(job, plan).values())
    dcn_s = dcn_bytes / chip.dcn_bytes_per_s if chip.dcn_bytes_per_s else 0.0
    return Bounds(
        model_flops=model, program_flops=program, compute_s=compute / peak,
        hbm_s=_hbm_bytes(job, plan) / chip.hbm_bytes_per_s,
        ici_s=ici_bytes / chip.ici_bytes_per_s, dcn_s=dcn_s, peak_flops=peak,
        saved_flops=saved, tokens=tokens,
    )  # fmt: skip


def _hbm_bytes(job: Job, plan: Plan) -> float:
    """Returns the HBM bytes per device: the update of its shards, weights read, and activations.

    Activations kept for the backward pass are written once and read once.
    """
    shards = sum(array.bytes_per_device for array in plan.trained)
    read = sum(
        pipeline.uses(array, plan)
        * read_bytes(array, plan)
        * (plan.mesh["fsdp"] if "fsdp" in array.spec else 1)
        for array in plan.parameters
        if not array.name.endswith(".table")
    )
    tokens = plan.batch.tokens_per_device
    kept = tokens * by_layers(job, plan, layer_runs(job, plan), least_kept_per_token)
    # An update reads and writes a parameter and its moments.
    state = shards + optimizer_state.bytes_per_device(job.optimizer, plan)
    return 2 * state + USES * (read + kept)
