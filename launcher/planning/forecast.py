"""The forecast of a run: the time of a step, the duration and the cost, each with a range. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.cluster.prices import Price, chips, price_of
from launcher.planning.planner import TrainingLaunch
from trainer.contract.estimates import forecast as steps
from trainer.contract.estimates.forecast import Basis, StepForecast
from trainer.contract.protocol.reports import StepSchedule

SECONDS_PER_HOUR = 3600


@dataclass(frozen=True, kw_only=True)
class TimeRange:
    """Step times in seconds between which the real one is expected."""

    low: float
    high: float


@dataclass(frozen=True, kw_only=True)
class CostForecast:
    """The cost of all steps, in US dollars."""

    dollars: float
    low: float
    high: float
    price_per_chip_hour: float
    price_source: str
    """Where the price is from: a key of the cluster file, or a list price with its date."""


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """What to expect of a run on its cluster. Start, saves, evaluations and faults are left out."""

    step_time_s: float
    tokens_per_s_per_device: float
    mfu: float | None
    """Model FLOPs utilization; None for a custom model, whose FLOPs are not known."""
    parts: Mapping[str, float]
    """Seconds of a step by part, which add up to `step_time_s`."""
    range: TimeRange
    basis: Basis
    validated: bool
    """Whether such forecasts have been compared with published measurements."""
    duration_s: float
    """Seconds of all steps."""
    cost: CostForecast | None
    """None when the price of a chip is not known."""


def forecast(launch: TrainingLaunch, schedule: StepSchedule | None = None) -> Forecast | None:
    """Returns the forecast by the compiled schedule of a step, or else estimated from the plan.

    Returns None when the speed of the devices or of the model is not known; see `unknown`.
    """
    job, world = launch.job, launch.plan.world
    step = steps.of_schedule(schedule, world) if schedule else steps.estimated(job, launch.plan)
    if step is None:
        return None
    tokens = job.data.global_batch * job.data.seq_len
    best = launch.bounds
    duration_s = job.last_step * step.step_s
    chip_hours = chips(launch.provisioned_world) * duration_s / SECONDS_PER_HOUR
    return Forecast(
        step_time_s=step.step_s,
        tokens_per_s_per_device=tokens / step.step_s / world.devices,
        mfu=best and best.model_flops / step.step_s / best.peak_flops,
        parts=step.parts,
        range=TimeRange(low=step.low_s, high=step.high_s),
        basis=step.basis,
        validated=step.is_validated,
        duration_s=duration_s,
        cost=cost(step, chip_hours, price_of(launch.cluster)),
    )


def cost(step: StepForecast, chip_hours: float, price: Price | None) -> CostForecast | None:
    """Returns the cost of chip-hours at the expected step time; None without a price."""
    if price is None:
        return None
    dollars = chip_hours * price.dollars_per_chip_hour
    return CostForecast(
        dollars=dollars,
        low=dollars * step.low_s / step.step_s,
        high=dollars * step.high_s / step.step_s,
        price_per_chip_hour=price.dollars_per_chip_hour,
        price_source=price.source,
    )


def unknown(launch: TrainingLaunch) -> str:
    """Returns why there is no forecast."""
    if launch.plan.world.on_cpu:
        return "none: the speed of CPU devices is not known"
    return "none: what a custom model computes is only known to the compiler (--compile)"
