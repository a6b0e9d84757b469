"""Makes the HTML of a report from the records of runs."""

import json
import math
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from launcher.audit.result import AuditResult
from launcher.audit.result import read_all as read_audits
from launcher.cluster.schema import ClusterRef
from launcher.core.errors import UsageError
from launcher.core.formatting import format_bytes, format_seconds
from launcher.core.printable import plain
from launcher.core.states import RunState
from launcher.report import charts, mesh
from launcher.report.charts import Chart, SpeedRow
from launcher.report.curves import Curve
from launcher.report.index import IndexRow
from launcher.report.timeline import Clock, Timeline, part_name, timeline
from launcher.runs.cause import Cause, cause
from launcher.runs.folder import resume_command, run_word
from launcher.runs.run_record import RunRecord, Sample
from launcher.runs.status import RunStatus
from trainer.contract.config.command import CommandJob
from trainer.contract.config.job import Job
from trainer.contract.estimates.traffic import traffic
from trainer.contract.planning.plan import Plan

HERE = Path(__file__).parent
CHARACTERS, CHARACTERS_OF_RUNS = 20_000, 50_000
"""Maximum length of a long text, and of the longest text of each run together."""
ENTRY_CHARACTERS = 500
MOST_SAMPLES, MOST_ENTRIES = 12, 200
COLUMNS, COLUMNS_OF_RUNS = 600, 1200
"""Maximum number of columns of a timeline, and of all timelines on a page together."""
REFRESH_S = 5
"""Seconds after which the page of a live run reloads itself."""


@dataclass(frozen=True)
class Entry:
    """A line of a run's history."""

    clock: str
    """Wall time of the run."""
    time: str
    attempt: int | None
    text: str


@dataclass(frozen=True)
class TrafficRow:
    """The least traffic along a mesh axis in a step."""

    axis: str
    link: str
    size: str
    sender: str


@dataclass(frozen=True)
class Command:
    """A command line, and what it is for."""

    purpose: str
    line: str


@dataclass(frozen=True)
class RunView:
    """One run, as its sections show it."""

    number: int
    record: RunRecord
    facts: dict[str, str]
    cause: Cause | None
    speed: list[SpeedRow]
    timeline: Timeline | None
    history: list[Entry]
    left_out: int
    """Older entries that are not in `history`."""
    meshes: list[mesh.Mesh]
    traffic: list[TrafficRow]
    samples: list[Sample]
    audits: list[AuditResult]
    """The newest one first."""
    commands: list[Command]
    job_text: str


def report(records: Sequence[RunRecord], now: float, verdicts: Sequence[str] = ()) -> str:
    """Returns the page of one or more runs, with sentences that compare them."""
    characters = min(CHARACTERS, CHARACTERS_OF_RUNS // len(records))
    columns = min(COLUMNS, COLUMNS_OF_RUNS // len(records))
    learning = charts.charts([*charts.LEARNING, *charts.of_tasks(records)], records)
    speed = charts.charts(charts.SPEED, records)
    data = {f"chart-{n}": chart.as_json() for n, chart in enumerate([*learning, *speed])}
    views = [_view(n, record, characters, columns) for n, record in enumerate(records)]
    return _environment().get_template("report.html").render(
        runs=views,
        verdicts=verdicts,
        columns=list(dict.fromkeys(name for view in views for name in view.facts)),
        groups=_numbered(learning, speed),
        data=_script_data({"names": [r.name for r in records], "charts": data}),
        uplot_js=_of_uplot("uPlot.iife.js"),
        uplot_css=_of_uplot("uPlot.min.css"),
        made_at=_date(now),
        refresh_s=_refresh_s(record.status for record in records),
    )  # fmt: skip


def index(rows: Sequence[IndexRow], now: float) -> str:
    """Returns the page with all runs."""
    return _environment().get_template("index.html").render(
        rows=rows, made_at=_date(now), refresh_s=_refresh_s(row.status for row in rows)
    )  # fmt: skip


def _refresh_s(statuses: Iterable[RunStatus]) -> int | None:
    return REFRESH_S if any(status.is_alive for status in statuses) else None


def _numbered(learning: list[Chart], speed: list[Chart]) -> dict[str, list[tuple[str, Chart]]]:
    """Returns the charts of each section with their ids."""
    ids = iter(range(len(learning) + len(speed)))
    return {
        "Learning": [(f"chart-{next(ids)}", chart) for chart in learning],
        "Speed": [(f"chart-{next(ids)}", chart) for chart in speed],
    }


def _view(number: int, record: RunRecord, characters: int, columns: int) -> RunView:
    clock = Clock(record.spans)
    return RunView(
        number=number,
        record=record,
        facts={name: plain(value) for name, value in _facts(record).items() if value},
        cause=cause(record, characters),
        speed=charts.speed_rows(record),
        timeline=timeline(record, clock, columns) if clock.wall_s else None,
        history=_history(record, clock),
        left_out=max(0, len(record.history) - MOST_ENTRIES),
        meshes=mesh.meshes(record.plans),
        traffic=_traffic(record),
        samples=[
            Sample(sample.step, plain(sample.text)[: characters // MOST_SAMPLES])
            for sample in _spread(record.samples, MOST_SAMPLES)
        ],
        audits=[replace(one, text=plain(one.text)) for one in read_audits(record.folder)],
        commands=list(_commands(record)),
        job_text=plain(record.job_text)[:characters],
    )


def _history(record: RunRecord, clock: Clock) -> list[Entry]:
    """Returns the newest entries of the history, on the clock of the timeline."""
    entries = record.history[-MOST_ENTRIES:]
    return [
        Entry(clock.label(e.time), _date(e.time), e.attempt, plain(e.text)[:ENTRY_CHARACTERS])
        for e in entries
    ]


def _facts(record: RunRecord) -> dict[str, str]:
    """Returns the facts at the top of a report; empty ones are not shown."""
    status, goodput = record.status, record.goodput
    loss, evaluation = (Curve.of(record.metrics, name).known for name in ("loss", "eval_loss"))
    return {
        "step": status.position,
        "loss": f"{loss[-1]:.4f}" if loss else "",
        "best evaluation": f"{min(evaluation):.4f}" if evaluation else "",
        "goodput": "" if goodput.share is None else f"{100 * goodput.share:.1f} %",
        "wall time": format_seconds(goodput.wall_s) if goodput.wall_s else "",
        "attempts": str(status.attempt or ""),
        "cluster": status.cluster,
        "parameters": _parameters(record.last_plan),
    }


def _parameters(plan: object) -> str:
    if not isinstance(plan, Plan):
        return ""
    count = sum(math.prod(array.shape) for array in plan.parameters)
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count:,}"


def _traffic(record: RunRecord) -> list[TrafficRow]:
    job, plan = record.job, record.last_plan
    if not (isinstance(job, Job) and isinstance(plan, Plan)):
        return []
    links = {"ici": ("links within a slice or host", "device"), "dcn": ("network", "host")}
    return [
        TrafficRow(one.axis, links[one.link][0], format_bytes(one.bytes), links[one.link][1])
        for one in traffic(job, plan)
    ]


def _spread(samples: Sequence[Sample], most: int) -> list[Sample]:
    """Returns at most `most` samples, spread evenly, the last one among them."""
    count = len(samples)
    if count <= most:
        return list(samples)
    return [samples[(number + 1) * count // most - 1] for number in range(most)]


def _commands(record: RunRecord) -> Iterator[Command]:
    """Yields the commands that repeat, continue and inspect a run."""
    status, folder = record.status, record.folder
    where = status.recorded.cluster or ClusterRef()
    again = ["launch", *where.arguments, str(folder / "job.yaml"), f"name={record.name}-again"]
    yield Command("the same job again, as a new run", shlex.join(again))
    if not status.is_alive and status.state is not RunState.FINISHED:
        yield Command("continue this run", resume_command(folder))
    yield Command("its state and history", f"launch status {run_word(folder)}")
    yield Command("the output of its hosts", f"launch logs {run_word(folder)}")
    if isinstance(record.job, CommandJob):
        yield Command("the program on each host", shlex.join(record.job.command))
    elif record.job:
        job = str(folder / "job.yaml")
        yield Command("the program on each host", shlex.join(["python", "-m", "trainer", job]))


def _script_data(value: Any) -> Markup:
    """Returns JSON that cannot end the script element that contains it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return Markup(text.replace("<", "\\u003c"))


def _date(time: float) -> str:
    return datetime.fromtimestamp(time, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


@cache
def _file(name: str) -> Markup:
    """Returns a file of this folder as it is."""
    return Markup((HERE / name).read_text(encoding="utf-8"))


def _of_uplot(name: str) -> Markup:
    """Returns a file of the charting library (https://github.com/leeoniya/uPlot).

    Raises UsageError when the package that brings it is not installed.
    """
    try:
        # Not imported: the package needs IPython for what it does itself.
        package = distribution("uplot-python")
    except PackageNotFoundError:
        raise UsageError(
            "launch report draws its charts with uPlot, which is not installed. Install it with "
            "`uv sync --extra report` or `pip install 'slipway[report]'`"
        ) from None
    path = Path(str(package.locate_file(f"uplot/static/{name}")))
    return Markup(path.read_text(encoding="utf-8"))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("launcher.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "seconds": format_seconds,
        "date": _date,
        "part_name": part_name,
        "asset": _file,
    }
    return environment
