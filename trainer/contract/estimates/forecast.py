"""The expected time of a step, with its parts and a range: from the schedule that the TPU compiler
has made, or estimated from the plan. Pure Python.

The estimate divides the work by rates that were fitted: on TPUs to compiled schedules, on GPUs to
published measurements. Its parts have the names of those of a compiled schedule.
"""

from dataclasses import dataclass
from typing import Literal

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.estimates import flops
from trainer.contract.estimates.activations import offloaded_bytes
from trainer.contract.estimates.roofline import Bounds, bounds
from trainer.contract.estimates.traffic import Traffic, activation_bytes, traffic
from trainer.contract.planning import accelerators, optimizer_state, pipeline
from trainer.contract.planning.accelerators import Accelerator
from trainer.contract.planning.attention import has_one_backward_kernel
from trainer.contract.planning.parameter_shapes import capacity
from trainer.contract.planning.plan import Plan, World
from trainer.contract.protocol.reports import StepSchedule

Basis = Literal["compiled schedule", "calibrated estimate"]
MATRIX_PRODUCTS, ATTENTION, OTHER_FUSIONS = "matrix products", "attention", "other fusions"
HOST, HOST_COPIES = "host", "waits for host memory"
COLLECTIVES = "collectives over {}"
"""Name of a part by mesh axis: the time in which nothing else runs."""
VALIDATED = ("v5e", "v5p", "v6e", "v7x")
"""Generations whose forecasts are compared with published measurements."""
HOST_S = 0.003
"""Seconds of the host per step: measured with 48 scanned layers on CPU devices. It works while the
devices run the step before, so it only counts beyond their time."""
RANGES: dict[Basis, tuple[float, float]] = {
    "compiled schedule": (0.88, 1.15),
    "calibrated estimate": (0.75, 1.4),
}
"""Lowest and highest step time as multiples of the expected one."""


@dataclass(frozen=True)
class StepForecast:
    """The expected time of one step, in seconds."""

    parts: dict[str, float]
    """Seconds by part: a work of the devices, a wait for collectives over an axis, or the host."""
    basis: Basis
    is_validated: bool
    """Whether forecasts of such devices have been compared with published measurements."""

    @property
    def step_s(self) -> float:
        """Seconds of a step, the sum of its parts."""
        return sum(self.parts.values())

    @property
    def low_s(self) -> float:
        return self.step_s * RANGES[self.basis][0]

    @property
    def high_s(self) -> float:
        return self.step_s * RANGES[self.basis][1]


def of_schedule(schedule: StepSchedule, world: World) -> StepForecast:
    """Returns the forecast of a step that was compiled for a world."""
    return _with_host(schedule.parts, "compiled schedule", world)


def estimated(job: Job, plan: Plan) -> StepForecast | None:
    """Returns the estimate of a step from its plan.

    Returns None for CPU devices and custom models, whose speed is not known.
    """
    best = bounds(job, plan)
    chip = None if plan.world.on_cpu else accelerators.parse(plan.world.accelerator)
    if best is None or chip is None or not isinstance(job.model, Model):
        return None
    rates = RATES.get(chip.generation, RATES["v4"])
    parts = _work(job, plan, best, chip, rates)
    busy_s = sum(parts.values())
    for one in traffic(job, plan):
        seconds = _link_s(one, chip)
        is_hidden = one.axis in OVERLAPPED
        exposed = max(EXPOSED * seconds, seconds - busy_s) if is_hidden else seconds
        name = COLLECTIVES.format(one.axis)
        parts[name] = parts.get(name, 0.0) + exposed
    copied = offloaded_bytes(job, plan)
    moments = optimizer_state.offloaded_bytes(job.optimizer, plan)
    rate = chip.host_link_bytes_per_s
    if rate and (copied or moments):
        # Moments go back while the next ones come, beside little work of the update.
        parts[HOST_COPIES] = _exposed_copies(copied / rate, busy_s) + moments / rate
    return _with_host(parts, "calibrated estimate", plan.world)


def _exposed_copies(seconds: float, busy_s: float) -> float:
    """Returns the seconds that work does not hide of copies to the host, and of as many back."""
    shares = (FORWARD_SHARE, 1 - FORWARD_SHARE)
    return sum(max(0.0, seconds - share * busy_s) for share in shares)


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Shares of a device's specifications that steps reach."""

    products: float
    """Share of the peak FLOP/s, in products with weights."""
    attention: float
    """Share of the peak FLOP/s, in the products of attention."""
    passes: int = 60
    """Times that fusions read or write the residual stream of a layer in a step."""


HOPPER = Rates(products=0.71, attention=0.57, passes=128)
AMPERE = Rates(products=0.65, attention=0.33)
RATES = {
    "v4": Rates(products=0.88, attention=0.60),
    "v5e": Rates(products=0.77, attention=0.60),
    "v5p": Rates(products=0.86, attention=0.60),
    "v6e": Rates(products=0.69, attention=0.30),
    "v7x": Rates(products=0.83, attention=0.30),
    "a100": AMPERE, "a100-80gb": AMPERE,
    "h100": HOPPER, "h200": HOPPER, "b200": HOPPER, "gb200": HOPPER,
}  # fmt: skip
"""Rates by generation. Those of TPUs are those of compiled schedules; for v7x, of measurements of
Llama 3.1 70B and 405B (the rows of docs/published that set constants). Older TPUs have those of a
v4. Those of Hopper are those of the kernels of `benchmarks/gpu.py` on an H200: 817 ms of products
with weights, 174 ms of attention and 181 ms of other kernels in a step of 65,536 tokens with the
loop over layers. Later GPUs have the same. Those of an A100 give torchtitan's measurement
(docs/performance.md there, Llama 3 8B with sequences of 8,192 and selective rematerialization):
2,973 tokens/s."""
EXPERTS_SHARE = 0.86
"""Rate of the products of experts, relative to other products: as measured for Mixtral 8x22B."""
ATTENTION_PRODUCTS, MODEL_PRODUCTS = 9, 6
"""Products of two passes of attention as kernels compute them, and as the model's FLOPs count them.
The backward pass computes the scores again, once for each of its two kernels."""
PRODUCTS_WITH_ONE_KERNEL = 8
"""The same where one kernel computes all gradients. Its five products are in blocks of a quarter of
the sequence, which cover 1.25 times what the causal mask leaves."""
RECOMPUTED_PRODUCTS = 2
"""Products of attention's forward pass, which rematerialization may repeat."""
OVERLAPPED = ("fsdp", "data")
"""Mesh axes whose collectives run beside other work."""
EXPOSED = 0.1
"""Share of the time of overlapped collectives that nothing hides."""
LINK_SHARE = 0.9
"""Share of a link's specified bandwidth that a collective gets."""
FORWARD_SHARE = 0.25
"""Share of a step's work in the forward pass, with which copies to the host's memory overlap: one
of four passes with full rematerialization. The copies back overlap with the rest."""


def _work(job: Job, plan: Plan, best: Bounds, chip: Accelerator, rates: Rates) -> dict[str, float]:
    """Returns the seconds of a device's work by part."""
    assert chip.hbm_bytes_per_s
    own = flops.attention_flops_per_token(job) * best.tokens
    repeated = RECOMPUTED_PRODUCTS if flops.recomputes_attention(job, plan) else 0
    counted = own * (MODEL_PRODUCTS + repeated) / MODEL_PRODUCTS
    is_one = has_one_backward_kernel(job, plan.attention)
    kernels = PRODUCTS_WITH_ONE_KERNEL if is_one else ATTENTION_PRODUCTS
    computed = own * (kernels + repeated) / MODEL_PRODUCTS
    moved = rates.passes * pipeline.layer_runs(job, plan) * activation_bytes(job, plan)
    # The devices of a pipeline run their layers in every tick, idle or not.
    stretch = pipeline.stretch(plan)
    output = flops.output_flops_per_token(job, plan) * best.tokens
    products = best.program_flops - best.saved_flops - counted - output
    experts = flops.expert_flops_per_token(job, plan) * best.tokens
    products += experts * (_slots(job, plan) / EXPERTS_SHARE - 1)
    return {
        MATRIX_PRODUCTS: (output + stretch * products) / best.peak_flops / rates.products,
        ATTENTION: stretch * computed / best.peak_flops / rates.attention,
        OTHER_FUSIONS: moved / chip.hbm_bytes_per_s + best.hbm_s,
    }


def _slots(job: Job, plan: Plan) -> float:
    """Returns the rows that experts compute, relative to those that tokens choose."""
    experts, length = job.decoder.moe, job.data.seq_len
    if experts is None or plan.moe != "capacity":
        return 1.0
    return experts.count * capacity(experts, length) / length / experts.top_k


def _link_s(one: Traffic, chip: Accelerator) -> float:
    """Returns the seconds of traffic; 0 where the bandwidth is not known."""
    rate = chip.ici_bytes_per_s if one.link == "ici" else chip.dcn_bytes_per_s
    return one.bytes / (LINK_SHARE * rate) if rate else 0.0


def _with_host(parts: dict[str, float], basis: Basis, world: World) -> StepForecast:
    exposed = max(0.0, HOST_S - sum(parts.values()))
    generation = accelerators.parse(world.accelerator).generation
    return StepForecast({**parts, HOST: exposed}, basis, generation in VALIDATED)
