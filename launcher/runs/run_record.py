"""Everything that a report, a comparison or a diagnosis shows about a run, read from its folder."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from launcher.core.events import AttemptEndedEvent, StragglerEvent
from launcher.core.files import parse_object
from launcher.runs import live
from launcher.runs.goodput import Goodput
from launcher.runs.history import HistoryEntry
from launcher.runs.spans import Span, SpanAccount
from launcher.runs.status import RunStatus, read_status
from launcher.runs.summary import Summary
from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.planning.plan import BasePlan, Plan
from trainer.contract.protocol.events import (
    CheckedEvent,
    CheckpointSavedEvent,
    CompiledEvent,
    ErrorEvent,
    EvalEvent,
    Event,
    SpikeEvent,
    StartedEvent,
    StepEvent,
)
from trainer.contract.protocol.wire import encode
from trainer.contract.records.metrics_file import Line, curve


@dataclass(frozen=True)
class Sample:
    """A text that the model has written."""

    step: int | None
    """The step after which it was written; None for the end of the run."""
    text: str


@dataclass(frozen=True)
class Slowdown:
    """A host that slowed down the others, until the end of its attempt."""

    process: int
    attempt: int
    after_step: int
    """The last step before it was noticed; 0 before the first."""
    factor: float | None
    """Its time divided by the median of all hosts."""
    text: str


@dataclass(frozen=True)
class RunRecord:
    """The contents of a run's folder, as far as reports, comparisons and diagnoses show them."""

    status: RunStatus
    job: Job | CommandJob | None
    """None when job.yaml is missing or from another version of Slipway."""
    job_text: str
    plans: dict[int, BasePlan]
    """Plan of each attempt; those that cannot be read are left out."""
    goodput: Goodput
    spans: list[Span]
    history: list[HistoryEntry]
    ends: list[AttemptEndedEvent]
    errors: list[ErrorEvent]
    """Errors of the programs in the last attempt."""
    slowdowns: list[Slowdown]
    spikes: list[SpikeEvent]
    """Spikes of the loss or the gradient norm, as process 0 has reported them."""
    compiled: list[CompiledEvent]
    saves: int
    """Number of committed checkpoints."""
    started: dict[int, StartedEvent]
    """The start of process 0 in each attempt, with its versions and its code."""
    corpora: dict[int, str]
    """SHA-256 of the training data of each attempt that has recorded it."""
    metrics: list[Line]
    samples: list[Sample]

    @property
    def folder(self) -> Path:
        return self.status.folder

    @property
    def name(self) -> str:
        return self.status.name

    @property
    def processes_per_host(self) -> int:
        """That of the last attempt with a plan."""
        return self.last_plan.world.processes_per_host if self.last_plan else 1

    @property
    def versions(self) -> dict[str, str]:
        """Version of each package on host 0, at its last start."""
        return dict(self._last_start.versions or {}) if self._last_start else {}

    @property
    def code(self) -> str:
        """SHA-256 over the code that computes the job; "" when unknown."""
        return (self._last_start and self._last_start.code) or ""

    @property
    def _last_start(self) -> StartedEvent | None:
        return self.started[max(self.started)] if self.started else None

    @property
    def last_plan(self) -> BasePlan | None:
        return self.plans[max(self.plans)] if self.plans else None


@dataclass
class _Events:
    """The events that the account and the history of a run leave out."""

    keeps_steps: bool
    ends: list[AttemptEndedEvent] = field(default_factory=list)
    errors: list[ErrorEvent] = field(default_factory=list)
    slowdowns: list[Slowdown] = field(default_factory=list)
    spikes: list[SpikeEvent] = field(default_factory=list)
    compiled: list[CompiledEvent] = field(default_factory=list)
    saves: int = 0
    step: int = 0
    """Last step of process 0."""
    started: dict[int, StartedEvent] = field(default_factory=dict)
    """The start of process 0 in each attempt."""
    corpora: dict[int, str] = field(default_factory=dict)
    """SHA-256 of the training data of each attempt, as a host has found it."""
    steps: list[str] = field(default_factory=list)
    """Steps and evaluations, as lines, of a program that writes no metrics.jsonl."""

    def add(self, event: Event) -> None:
        match event:
            case StepEvent() | EvalEvent():
                if isinstance(event, StepEvent) and not event.process:
                    self.step = event.step
                if self.keeps_steps and not event.process:
                    self.steps.append(encode(event))
            case AttemptEndedEvent():
                self.ends.append(event)
            case ErrorEvent():
                self.errors.append(event)
            case StragglerEvent():
                self.slowdowns.append(_slowdown(event, self.step))
            case SpikeEvent() if not event.process:
                self.spikes.append(event)
            case CompiledEvent():
                self.compiled.append(event)
            case CheckpointSavedEvent():
                self.saves += 1
            case StartedEvent() if not event.process:
                self.started[event.attempt or 1] = event
            case CheckedEvent() if event.corpus_sha256:
                self.corpora[event.attempt or 1] = event.corpus_sha256
            case _:
                pass


def read_record(folder: Path) -> RunRecord:
    """Reads the record of a run.

    Raises RunFolderError when its lock cannot be queried, RunRecordError when state.json has a
    wrong field.
    """
    status = read_status(folder)
    metrics = _lines(folder / "metrics.jsonl")
    account, found = SpanAccount(), _Events(keeps_steps=not metrics)
    summary = Summary(account=account)
    if (folder / "events.jsonl").exists():
        summary.read_on(folder / "events.jsonl", found.add)
    now = time.time() if status.is_alive else None
    goodput = summary.goodput(now, live.read(folder).heard)
    attempt, plans = status.attempt or 1, _plans(folder / "plans")
    return RunRecord(
        status=status,
        job=_job(folder / "job.yaml"),
        job_text=_text(folder / "job.yaml"),
        plans=plans,
        goodput=goodput,
        spans=account.spans(),
        history=summary.history.entries,
        ends=found.ends,
        errors=[error for error in found.errors if error.attempt == attempt],
        slowdowns=found.slowdowns,
        spikes=found.spikes,
        compiled=found.compiled,
        saves=found.saves,
        started=found.started,
        corpora=_planned_corpora(plans) | found.corpora,
        metrics=curve(metrics or found.steps),
        samples=_samples(folder),
    )


def read_metrics(folder: Path) -> list[Line]:
    """Returns the clean curve in a run's metrics.jsonl; empty without the file."""
    return curve(_lines(folder / "metrics.jsonl"))


def _slowdown(event: StragglerEvent, step: int) -> Slowdown:
    process, attempt = event.process or 0, event.attempt or 1
    return Slowdown(process, attempt, step, event.factor, event.message)


def _lines(path: Path) -> list[str]:
    return _text(path).splitlines()


def _text(path: Path) -> str:
    """Returns the text of a file; "" when there is none."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _job(path: Path) -> Job | CommandJob | None:
    try:
        return load_job(path).value
    except ConfigError:
        return None


def _plans(folder: Path) -> dict[int, BasePlan]:
    files = {int(path.stem): path for path in folder.glob("*.json") if path.stem.isdecimal()}
    plans = {attempt: _plan(_text(path)) for attempt, path in sorted(files.items())}
    return {attempt: plan for attempt, plan in plans.items() if plan}


def _planned_corpora(plans: Mapping[int, BasePlan]) -> dict[int, str]:
    """Returns the SHA-256 of the training data of each attempt whose planner could read it."""
    known = {n: plan.corpus.sha256 for n, plan in plans.items() if isinstance(plan, Plan)}
    return {attempt: sha256 for attempt, sha256 in known.items() if sha256}


def _plan(text: str) -> BasePlan | None:
    for kind in (Plan, BasePlan):
        try:
            return kind.model_validate_json(text)
        except ValidationError:
            continue
    return None


def _samples(folder: Path) -> list[Sample]:
    """Returns the last sample of each step, and that of the end."""
    by_step: dict[int, Sample] = {}
    for line in map(parse_object, _lines(folder / "samples.jsonl")):
        match line:
            case {"step": int(step), "text": str(text)}:
                by_step[step] = Sample(step, text)
            case _:
                pass
    last = _text(folder / "sample.txt")
    return [by_step[step] for step in sorted(by_step)] + ([Sample(None, last)] if last else [])
