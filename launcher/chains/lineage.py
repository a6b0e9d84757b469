"""Where the weights of a checkpoint come from: data, code, libraries, hosts, and other runs."""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.cluster.schema import ClusterRef
from launcher.core.errors import UsageError
from launcher.runs.checkpoints import Entry
from launcher.runs.registry import is_run
from launcher.runs.run_record import RunRecord, read_record
from trainer.contract.config.data import Data
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.records.checkpoint_metadata import (
    BrokenError,
    CheckpointMetadata,
    FormatError,
    read_about,
)
from trainer.contract.records.compatibility import PARAMS
from trainer.contract.storage.paths import AnyPath, is_url

MOST_PARENTS = 20


@dataclass(frozen=True, kw_only=True)
class DataSource:
    """A corpus that a run has trained on."""

    name: str
    source: str
    """Format, as `data.source` of the job."""
    path: str | None
    weight: int


@dataclass(frozen=True, kw_only=True)
class ExcludedExamples:
    """Examples that the run has left out since a spike of its loss."""

    step: int
    """The step of the spike."""
    count: int


@dataclass(frozen=True, kw_only=True)
class AttemptFacts:
    """The steps of an attempt that count, and where they were computed."""

    attempt: int
    first_step: int
    last_step: int
    accelerator: str
    hosts: int
    devices_per_host: int
    mesh: Mapping[str, int]


@dataclass(frozen=True, kw_only=True)
class Ancestor:
    """One run on the way to a checkpoint, up to the step that counts."""

    run: str
    run_id: str
    step: int
    checkpoint: str
    """The folder of the checkpoint."""
    saved_at: float
    """Start of the save, in seconds since the epoch."""
    parameters: int
    """Number of the trained parameters."""
    examples: int
    tokens: int
    seed: int
    loss: float
    eval_loss: float | None
    corpora: tuple[DataSource, ...]
    corpus_sha256: str
    """Hash of the training data of all corpora together."""
    excluded: tuple[ExcludedExamples, ...]
    code_sha256: str
    """Hash of all code that computed the job."""
    versions: Mapping[str, str]
    attempt: int
    """Number of the attempt that saved it, on the hosts that follow."""
    accelerator: str
    hosts: int
    devices_per_host: int
    mesh: Mapping[str, int]
    attempts: tuple[AttemptFacts, ...]
    """Attempts that have computed its steps; empty when the run's folder is not here."""
    init_from: str | None
    """Folder of the weights that it started from; null for random weights."""
    teacher: str | None
    """Checkpoint of the teacher whose predictions it learned; null without one."""


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """A checkpoint and all runs that it comes from."""

    runs: tuple[Ancestor, ...]
    """The run of the checkpoint, then the run whose weights it started from, and so on."""
    unknown_origin: str | None
    """Weights of the oldest run that no run of Slipway has saved; null when there are none."""
    commands: tuple[str, ...]
    """Commands that repeat it, the oldest run first; empty when a run's folder is not here."""

    @property
    def last(self) -> Ancestor:
        """The run of the checkpoint."""
        return self.runs[0]


def lineage(entry: Entry) -> Lineage:
    """Returns where a checkpoint comes from. Raises UsageError when it cannot be read."""
    if entry.about is None:
        raise UsageError(f"{entry.folder}: {entry.problem}")
    runs, commands, origin = list[Ancestor](), list[str | None](), None
    folder, about = entry.folder, entry.about
    while len(runs) < MOST_PARENTS:
        record = _record_of(folder, about)
        runs.append(_ancestor(folder, about, record))
        commands.append(_command(runs[-1], record, origin := runs[-1].init_from))
        parent = _parent(origin)
        if parent is None:
            break
        folder, about = parent
        origin = None
    known = [line for line in reversed(commands) if line]
    return Lineage(
        runs=tuple(runs),
        unknown_origin=origin,
        commands=tuple(known) if len(known) == len(runs) else (),
    )


def _record_of(folder: AnyPath, about: CheckpointMetadata) -> RunRecord | None:
    """Returns the record of the run that saved a checkpoint in its own folder; else None."""
    run = None if is_url(folder) else Path(str(folder)).absolute().parent.parent
    if run is None or not is_run(run):
        return None
    run_id = run / "run_id"
    is_of_run = run_id.exists() and run_id.read_text().strip() == about.run_id
    return read_record(run) if is_of_run else None


def _ancestor(folder: AnyPath, about: CheckpointMetadata, record: RunRecord | None) -> Ancestor:
    job = Job.model_validate(about.job, strict=False)
    source = about.base.source if about.base else job.checkpoint and job.checkpoint.init_from
    return Ancestor(
        run=job.name,
        run_id=about.run_id,
        step=about.step,
        checkpoint=str(folder),
        saved_at=about.time,
        parameters=_parameters(about),
        examples=about.examples,
        tokens=about.examples * job.data.seq_len,
        seed=job.seed,
        loss=about.loss,
        eval_loss=about.eval_loss,
        corpora=tuple(_corpora(job.data)),
        corpus_sha256=about.corpus_sha256,
        excluded=tuple(ExcludedExamples(step=one.step, count=one.count) for one in about.excluded),
        code_sha256=about.code,
        versions=about.versions,
        attempt=about.attempt,
        hosts=about.world.hosts,
        devices_per_host=about.world.devices_per_host,
        accelerator=about.world.accelerator,
        mesh=about.mesh,
        attempts=tuple(_attempts(record, about.step)) if record else (),
        init_from=source or None,
        teacher=about.teacher.source if about.teacher else None,
    )


def _corpora(data: Data) -> Iterator[DataSource]:
    for one in data.mixture or ():
        yield DataSource(name=one.shown, source=one.source, path=one.path, weight=one.weight)
    if data.mixture is None:
        name = data.path or data.source
        yield DataSource(name=name, source=data.source, path=data.path, weight=1)


def _parameters(about: CheckpointMetadata) -> int:
    return sum(
        math.prod(array.shape) for name, array in about.arrays.items() if name.startswith(PARAMS)
    )


def _attempts(record: RunRecord, step: int) -> Iterator[AttemptFacts]:
    """Yields the attempts that have computed steps up to `step`."""
    lines = [one for one in record.metrics if "loss" in one and one["step"] <= step]
    for number, plan in record.plans.items():
        steps = [one["step"] for one in lines if one["attempt"] == number]
        if steps and isinstance(plan, Plan):
            yield AttemptFacts(
                attempt=number,
                first_step=min(steps),
                last_step=max(steps),
                accelerator=plan.world.accelerator,
                hosts=plan.world.hosts,
                devices_per_host=plan.world.devices_per_host,
                mesh=plan.mesh,
            )


def _parent(source: str | None) -> tuple[AnyPath, CheckpointMetadata] | None:
    """Returns the step folder that weights come from; None for any other source."""
    if source is None or is_url(source):
        return None
    folder = Path(source).expanduser()
    try:
        return folder, read_about(folder)
    except (BrokenError, FormatError):
        return None


def _command(found: Ancestor, record: RunRecord | None, source: str | None) -> str | None:
    """Returns the command that repeats a run up to its step; None without the run's folder."""
    if record is None:
        return None
    cluster = record.status.recorded.cluster or ClusterRef()
    words = ["launch", *cluster.arguments, str(record.folder / "job.yaml")]
    words += [f"name={_again(found.run)}", f"stop_after_step={found.step}"]
    parent = _parent(source)
    if parent:
        name, step = _again(parent[1].job["name"]), parent[1].step
        words.append(f"checkpoint.init_from=run:{name}@{step}")
    return shlex.join(words)


def _again(name: str) -> str:
    return f"{name}-again"
