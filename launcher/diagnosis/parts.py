"""Divides the wall time of a run into steps at the best speed and losses, each with its reason.

The parts are those of the goodput, grouped by what a user can change. Time in steps is divided
further: by the bounds of the plan, by the stragglers that were noticed, and the rest. So the parts
add up to the wall time. No event measures how much of the collectives is exposed. The plan bounds
it: at most the least time over the links, and at most the time above the other bounds.
"""

import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from launcher.runs.goodput import SHOWN_FROM_S, Part
from launcher.runs.run_record import RunRecord, Slowdown
from trainer.contract.config.job import Job
from trainer.contract.estimates.roofline import Bounds, bounds
from trainer.contract.planning.plan import BasePlan, Plan


class PartKind(StrEnum):
    """What a part of the wall time went into."""

    BOUND = "plan_bound"
    """Steps that counted, at the bound of the plan: arithmetic and HBM."""
    STEPS = "steps"
    """Steps that counted, of a plan without a known bound."""
    COLLECTIVES = "exposed_collectives"
    """Steps: time of collectives that may not have overlapped with arithmetic, at most."""
    STRAGGLERS = "stragglers"
    """Steps: time above the usual step after a host was noticed to be slow."""
    ABOVE_BOUND = "above_bound"
    """Steps: the rest of the time above the bound of the plan."""
    DATA_WAIT = "data_wait"
    COMPILATION = "compilation"
    CHECKPOINTS = "checkpoints"
    EVALUATION = "evaluation"
    """Evaluations and samples."""
    START = "start"
    """The first attempt before its steps, except for the compilation."""
    RESTARTS = "restarts"
    """Lost work, waiting, and the starts of later attempts."""
    PROGRAM = "program"
    """A program that reports neither phases nor steps."""
    OTHER = "other"

    @property
    def is_loss(self) -> bool:
        return self not in (PartKind.BOUND, PartKind.STEPS, PartKind.PROGRAM)


OF_PARTS = {
    Part.PROVISIONING: PartKind.START,
    Part.START: PartKind.START,
    Part.DATA: PartKind.START,
    Part.RESTORE: PartKind.START,
    Part.COMPILE: PartKind.COMPILATION,
    Part.SAVE: PartKind.CHECKPOINTS,
    Part.COMMIT: PartKind.CHECKPOINTS,
    Part.EVALUATE: PartKind.EVALUATION,
    Part.SAMPLE: PartKind.EVALUATION,
    Part.DATA_WAIT: PartKind.DATA_WAIT,
    Part.LOST: PartKind.RESTARTS,
    Part.WAITING: PartKind.RESTARTS,
    Part.PROGRAM: PartKind.PROGRAM,
    Part.OTHER: PartKind.OTHER,
}
"""PartKind of each part of the goodput, except for steps."""
STARTS_AGAIN = (Part.PROVISIONING, Part.START, Part.DATA, Part.RESTORE, Part.COMPILE)
"""Parts that belong to a restart in every attempt but the first."""


@dataclass(frozen=True)
class TimePart:
    """A part of the wall time of a run."""

    kind: PartKind
    seconds: float
    of_parts: Mapping[Part, float]
    """Seconds of the parts of the goodput that it consists of."""


def time_parts(record: RunRecord) -> list[TimePart]:
    """Returns the parts that took time. They add up to the wall time of the goodput.

    The losses come first, the largest of them first.
    """
    seconds: dict[PartKind, dict[Part, float]] = {kind: {} for kind in PartKind}
    again = _again_s(record)
    for part, kind in OF_PARTS.items():
        whole_s = record.goodput.seconds[part]
        restarts_s = min(whole_s, again.get(part, 0.0))
        if restarts_s:
            seconds[PartKind.RESTARTS][part] = restarts_s
        seconds[kind][part] = seconds[kind].get(part, 0.0) + whole_s - restarts_s
    for kind, steps_s in _steps_s(record).items():
        seconds[kind][Part.STEPS] = steps_s
    parts = [TimePart(kind, sum(of.values()), of) for kind, of in seconds.items()]
    shown = [part for part in parts if part.seconds > 0]
    return sorted(shown, key=lambda part: (not part.kind.is_loss, -part.seconds))


def is_small(seconds: float, wall_s: float) -> bool:
    """Returns whether a part is too short to act on: less than 1 % of the wall time."""
    return seconds < max(SHOWN_FROM_S, 0.01 * wall_s)


def _again_s(record: RunRecord) -> dict[Part, float]:
    """Returns the seconds of each part that starts an attempt, in all attempts but the first."""
    first = min((span.attempt for span in record.spans if span.attempt), default=0)
    seconds: dict[Part, float] = {}
    for span in record.spans:
        if span.attempt > first and span.part in STARTS_AGAIN:
            seconds[span.part] = seconds.get(span.part, 0.0) + span.seconds
    return seconds


def _steps_s(record: RunRecord) -> dict[PartKind, float]:
    """Returns the seconds of the steps that counted, divided by what they went into."""
    left_s = record.goodput.seconds[Part.STEPS]
    stragglers_s = min(left_s, _stragglers_s(record))
    left_s -= stragglers_s
    if (best := _best(record)) is None:
        return {PartKind.STEPS: left_s, PartKind.STRAGGLERS: stragglers_s}
    bound_s = min(left_s, best.without_links_s)
    links_s = min(left_s - bound_s, best.links_s)
    return {
        PartKind.BOUND: bound_s,
        PartKind.COLLECTIVES: links_s,
        PartKind.STRAGGLERS: stragglers_s,
        PartKind.ABOVE_BOUND: left_s - bound_s - links_s,
    }


class Best(NamedTuple):
    """The least times of all steps that counted, in seconds."""

    without_links_s: float
    """The bound of arithmetic and HBM."""
    links_s: float


def _best(record: RunRecord) -> Best | None:
    """Returns the bounds of the plans; None when those of an attempt with steps are unknown."""
    counts: dict[int, int] = {}
    for line in _step_lines(record.metrics):
        counts[line.attempt] = counts.get(line.attempt, 0) + line.steps
    without_links_s = links_s = 0.0
    for attempt, count in counts.items():
        found = _bounds(record.job, record.plans.get(attempt))
        if found is None:
            return None
        without_links_s += count * max(found.compute_s, found.hbm_s)
        links_s += count * found.link_s
    return Best(without_links_s, links_s) if counts else None


def _bounds(job: object, plan: BasePlan | None) -> Bounds | None:
    return bounds(job, plan) if isinstance(job, Job) and isinstance(plan, Plan) else None


class StepLine(NamedTuple):
    """A line of metrics, which stands for the steps since the previous line."""

    attempt: int
    step: int
    steps: int
    """Steps since the previous line: 1 unless the job has `log_every`."""
    busy_s: float | None
    """Seconds of a step without the wait for its data; None when unknown."""


def _step_lines(metrics: Iterable[Mapping[str, Any]]) -> Iterator[StepLine]:
    previous = 0
    for line in metrics:
        if "loss" not in line:
            continue
        step_s, wait_s = line.get("step_time_s"), line.get("data_wait_s") or 0.0
        busy_s = max(0.0, step_s - wait_s) if isinstance(step_s, int | float) else None
        yield StepLine(line["attempt"], line["step"], max(1, line["step"] - previous), busy_s)
        previous = line["step"]


def _stragglers_s(record: RunRecord) -> float:
    """Returns the seconds above the usual step while a host was slow.

    Without other steps to compare with, the slow host's factor says what is usual.
    """
    if not record.slowdowns:
        return 0.0
    lines = [line for line in _step_lines(record.metrics) if line.busy_s is not None]
    slow = [(line, found) for line in lines if (found := _slowdowns_at(line, record.slowdowns))]
    others = [line.busy_s or 0.0 for line in lines if not _slowdowns_at(line, record.slowdowns)]
    usual_s = statistics.median(others) if others else None
    return sum(line.steps * _excess_s(line.busy_s or 0.0, usual_s, found) for line, found in slow)


def _slowdowns_at(line: StepLine, slowdowns: Iterable[Slowdown]) -> list[Slowdown]:
    return [s for s in slowdowns if s.attempt == line.attempt and s.after_step < line.step]


def _excess_s(busy_s: float, usual_s: float | None, slowdowns: Iterable[Slowdown]) -> float:
    if usual_s is None:
        usual_s = busy_s / max(1.0, *(found.factor or 1.0 for found in slowdowns))
    return max(0.0, busy_s - usual_s)
