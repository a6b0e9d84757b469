"""The charts of a report: which metrics each one shows, of one run or of several."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.report.curves import Curve
from launcher.runs.run_record import RunRecord
from trainer.contract.config.job import Job
from trainer.contract.estimates.roofline import Bounds, bounds
from trainer.contract.planning.plan import Plan

FEWEST_POINTS, MOST_POINTS, POINTS_IN_ALL = 20, 2000, 45_000
"""Limits on the points of a curve, and about the number of points on a page."""
BOUND = "bound of the plan"
TASKS = "tasks"
"""Key of a line with the metrics of `eval.tasks`."""


@dataclass(frozen=True)
class Metric:
    """A metric in a chart."""

    name: str
    label: str
    is_sparse: bool = False
    """Whether its few points are drawn as such."""
    bound: str = ""
    """Attribute of the plan's bounds that limits it."""
    has_spikes: bool = False
    """Whether the run watches it for spikes."""
    unit: str = ""
    """`s` for a time, `%` for a share, "" for another rate."""
    is_of_task: bool = False
    """Whether it is a metric of `eval.tasks`, as `task/metric`."""

    def curve(self, record: RunRecord) -> Curve:
        """Returns its values in a run."""
        lines = record.metrics
        if self.is_of_task:
            lines = [{"step": line["step"], **_of_tasks(line)} for line in lines]
        return Curve.of(lines, self.name)


@dataclass(frozen=True)
class ChartSpec:
    """A chart and its metrics."""

    title: str
    unit: str
    metrics: tuple[Metric, ...]
    is_log: bool = False


LEARNING = (
    ChartSpec(
        "Loss",
        "nats per target",
        (
            Metric("loss", "training", has_spikes=True),
            Metric("eval_loss", "evaluation", is_sparse=True),
        ),
    ),
    ChartSpec(
        "Accuracy",
        "share of questions",
        (
            Metric("accuracy", "accuracy", is_sparse=True),
            Metric("accuracy_normalized", "per character", is_sparse=True),
        ),
    ),
    ChartSpec("Learning rate", "", (Metric("learning_rate", "learning rate"),)),
    ChartSpec(
        "Gradient norm",
        "L2, before clipping",
        (Metric("grad_norm", "gradient norm", has_spikes=True),),
        is_log=True,
    ),
)
SPEED = (
    ChartSpec(
        "Step time",
        "seconds",
        (Metric("step_time_s", "step time", bound="step_s", unit="s"),),
        is_log=True,
    ),
    ChartSpec(
        "Throughput", "tokens/s", (Metric("tokens_per_s", "tokens/s", bound="tokens_per_s"),)
    ),
    ChartSpec("MFU", "share of the peak", (Metric("mfu", "MFU", bound="mfu", unit="%"),)),
    ChartSpec("Data wait", "seconds", (Metric("data_wait_s", "data wait", unit="s"),)),
)


@dataclass(frozen=True)
class Line:
    """A line of a chart."""

    run: int
    """Number of its run on the page."""
    label: str
    kind: str
    """`line`, `points`, `bound` or `spikes`."""
    curve: Curve

    def as_json(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "label": self.label,
            "kind": self.kind,
            "data": self.curve.as_json(),
        }


@dataclass(frozen=True)
class Chart:
    """A chart with its data."""

    spec: ChartSpec
    lines: list[Line]

    @property
    def description(self) -> str:
        """The chart in words, for readers who do not see it."""
        return "; ".join(_describe(line) for line in self.lines)

    def as_json(self) -> dict[str, Any]:
        return {
            "title": self.spec.title,
            "log": self.spec.is_log and all(v > 0 for line in self.lines for v in line.curve.known),
            "lines": [line.as_json() for line in self.lines],
        }


@dataclass(frozen=True)
class SpeedRow:
    """How one metric of a run's speed is distributed over the steps."""

    label: str
    median: float
    of_90: float
    """Value that 90 % of the steps reach: at most this time, or at least this rate."""
    of_99: float
    worst: float
    bound: float | None
    unit: str

    def text(self, value: float) -> str:
        """Returns a value with its unit."""
        if self.unit == "%":
            return f"{100 * value:.1f} %"
        return f"{value:,.3g} s" if self.unit == "s" else f"{value:,.0f}"


def of_tasks(records: Sequence[RunRecord]) -> list[ChartSpec]:
    """Returns a chart for each metric of the runs' tasks, with a line for each task."""
    names = dict.fromkeys(
        name for one in records for line in one.metrics for name in _of_tasks(line)
    )
    tasks: dict[str, list[Metric]] = {}
    for name in names:
        task, _, metric = name.rpartition("/")
        tasks.setdefault(metric, []).append(Metric(name, task, is_sparse=True, is_of_task=True))
    return [ChartSpec(f"Tasks: {metric}", "", tuple(of)) for metric, of in tasks.items()]


def charts(specs: Sequence[ChartSpec], records: Sequence[RunRecord]) -> list[Chart]:
    """Returns the charts that have data."""
    found = [Chart(spec, list(_lines(spec, records))) for spec in specs]
    return [chart for chart in found if chart.lines]


def points(runs: int) -> int:
    """Returns the maximum number of points of a curve on a page with this number of runs."""
    metrics = sum(len(spec.metrics) for spec in (*LEARNING, *SPEED))
    return max(FEWEST_POINTS, min(MOST_POINTS, POINTS_IN_ALL // (runs * metrics)))


def plan_bounds(record: RunRecord) -> Bounds | None:
    """Returns the bounds of a step by the last plan; None when they are unknown."""
    job, plan = record.job, record.last_plan
    return bounds(job, plan) if isinstance(job, Job) and isinstance(plan, Plan) else None


def speed_rows(record: RunRecord) -> list[SpeedRow]:
    """Returns the distribution of each metric of speed that the run has."""
    best = plan_bounds(record)
    metrics = [metric for spec in SPEED for metric in spec.metrics]
    return [row for metric in metrics if (row := _speed_row(record.metrics, metric, best))]


def _speed_row(
    lines: Sequence[Mapping[str, Any]], metric: Metric, best: Bounds | None
) -> SpeedRow | None:
    curve = Curve.of(lines, metric.name)
    if not curve.known:
        return None
    is_time = metric.unit == "s"
    percents = (50, 90, 99) if is_time else (50, 10, 1)
    median, of_90, of_99 = (curve.percentile(percent) or 0.0 for percent in percents)
    return SpeedRow(
        label=metric.label,
        median=median,
        of_90=of_90,
        of_99=of_99,
        worst=max(curve.known) if is_time else min(curve.known),
        bound=getattr(best, metric.bound) if best and metric.bound else None,
        unit=metric.unit,
    )


def _of_tasks(line: Mapping[str, Any]) -> Mapping[str, Any]:
    found = line.get(TASKS)
    return found if isinstance(found, Mapping) else {}


def _lines(spec: ChartSpec, records: Sequence[RunRecord]) -> Iterator[Line]:
    """Yields the lines of a chart, run by run. Those of several runs begin with the run's name."""
    limit = points(len(records))
    for number, record in enumerate(records):
        of_run = f"{record.name}: " if len(records) > 1 else ""
        is_alone = len(spec.metrics) == 1
        best = plan_bounds(record)
        for metric in spec.metrics:
            curve = metric.curve(record)
            if not curve.known:
                continue
            kind = "points" if metric.is_sparse else "line"
            label = record.name if of_run and is_alone else of_run + metric.label
            yield Line(number, label, kind, curve.thinned(limit))
            spikes = _spikes(record, metric)
            if spikes.known:
                yield Line(number, of_run + "spike", "spikes", spikes.thinned(limit))
            if best and metric.bound:
                yield Line(number, of_run + BOUND, "bound", _level(curve, best, metric))


def _spikes(record: RunRecord, metric: Metric) -> Curve:
    """Returns the values of a metric at its run's spikes, which the curve may no longer have."""
    by_step = {spike.step: vars(spike) for spike in record.spikes} if metric.has_spikes else {}
    return Curve.of((by_step[step] for step in sorted(by_step)), metric.name)


def _level(curve: Curve, best: Bounds, metric: Metric) -> Curve:
    """Returns the bound of a metric as a level line over the steps of its curve."""
    level = getattr(best, metric.bound)
    return Curve([curve.steps[0], curve.steps[-1]], [level, level])


def _describe(line: Line) -> str:
    known = line.curve.known
    if not known:
        return f"{line.label}: no finite value"
    return (
        f"{line.label}: {known[0]:.4g} at step {line.curve.steps[0]:,}, {known[-1]:.4g} at step "
        f"{line.curve.steps[-1]:,}, lowest {min(known):.4g}, highest {max(known):.4g}"
    )
