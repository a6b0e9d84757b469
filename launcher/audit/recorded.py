"""What a run has recorded about its steps: the values that a replay must reproduce."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from launcher.audit.programs import Program
from launcher.comparison.steps import step_lines
from launcher.core.errors import UsageError
from launcher.runs.checkpoints import Entry, entries
from launcher.runs.run_record import RunRecord
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.records.checkpoint_metadata import CheckpointMetadata, folder_of
from trainer.contract.records.compatibility import compare


@dataclass(frozen=True)
class RecordedStep:
    """What a run has recorded about one step. None: not recorded."""

    loss: float | None
    grad_norm: float | None
    examples: str | None
    attempt: int


@dataclass(frozen=True)
class Recorded:
    """The steps that are replayed, as the run has recorded them."""

    name: str
    first: int
    last: int
    start: Entry | None
    """The checkpoint that the replay starts from; None for step 0."""
    steps: Mapping[int, RecordedStep]
    """The steps from `first` to `last`."""
    checkpoints: Mapping[int, CheckpointMetadata]
    """The whole checkpoints of these steps."""
    checkpoint_folder: str
    """The folder of all checkpoints."""
    job: Job
    """The job that computed these steps."""
    plans: Mapping[int, Plan]
    """Plan of each attempt that computed some of them."""
    programs: tuple[Program, ...]
    """The programs of these attempts, each once."""
    corpus_sha256: str | None

    @property
    def start_step(self) -> int:
        return self.start.step if self.start else 0


def read_recorded(record: RunRecord, steps: tuple[int, int] | None) -> Recorded:
    """Returns what the run has recorded about steps, by default those between its checkpoints.

    Raises UsageError that says what is missing.
    """
    job = record.job
    if not isinstance(job, Job):
        raise UsageError(
            f"{record.name}: an audit needs a job of Slipway's trainer; this run's job is "
            f"{'a command' if job else 'missing or unreadable'}"
        )
    lines = {line["step"]: line for line in step_lines(record)}
    if not lines:
        raise UsageError(f"{record.name}: no step is recorded in {record.folder}/metrics.jsonl")
    folder = folder_of(job, record.folder)
    whole = [entry for entry in entries(folder) if not entry.problem]
    whole.sort(key=lambda entry: entry.step)
    first, last = steps or _covered(record, folder, whole, max(lines))
    _check_range(record.name, first, last, lines)
    start = _start(record.name, folder, first, whole)
    within = {e.step: e.about for e in whole if e.about and first <= e.step <= last}
    job = _job_of(record.name, job, start, within)
    found = {n: _step(line) for n, line in lines.items() if first <= n <= last}
    plans = {n: record.plans.get(n) for n in {one.attempt for one in found.values()}}
    about = next(iter(within.values()), start.about if start else None)
    corpora = [record.corpora.get(attempt) for attempt in sorted(plans, reverse=True)]
    return Recorded(
        name=record.name,
        first=first,
        last=last,
        start=start,
        steps=found,
        checkpoints=within,
        checkpoint_folder=folder,
        job=job,
        plans={n: plan for n, plan in plans.items() if isinstance(plan, Plan)},
        programs=_programs(record, sorted(plans), about),
        corpus_sha256=about.corpus_sha256 if about else next(filter(None, corpora), None),
    )


def _programs(
    record: RunRecord, attempts: Sequence[int], about: CheckpointMetadata | None
) -> tuple[Program, ...]:
    """Returns the programs of attempts; that of a checkpoint in place of those not recorded."""
    starts = [record.started.get(attempt) for attempt in attempts]
    found = [Program(one.code or "", one.versions) for one in starts if one and one.versions]
    if len(found) < len(attempts):
        found.append(Program(about.code, about.versions) if about else Program("", {}))
    return tuple(one for number, one in enumerate(found) if one not in found[:number])


def _covered(
    record: RunRecord, folder: str, whole: Sequence[Entry], last: int
) -> tuple[int, int]:  # fmt: skip
    """Returns the steps from the oldest checkpoint to the newest one, as far as there are two.

    Raises UsageError when the run has saved checkpoints, and none of them is here.
    """
    if not whole and record.saves:
        raise UsageError(
            f"{record.name}: no whole checkpoint is in {folder}, and the run has saved "
            f"{record.saves}. Make that folder readable here, or replay from the initial weights: "
            f"--steps 1-{last}"
        )
    if not whole:
        return 1, last
    return (whole[0].step if len(whole) > 1 else 0) + 1, whole[-1].step


def _check_range(name: str, first: int, last: int, lines: Mapping[int, Any]) -> None:
    missing = [step for step in range(first, last + 1) if step not in lines]
    if missing:
        known = sorted(lines)
        raise UsageError(
            f"--steps {first}-{last}: {name} has not recorded "
            f"{'step' if len(missing) == 1 else f'{len(missing)} of these steps, first'} "
            f"{missing[0]}. Recorded: steps {known[0]} to {known[-1]}"
        )


def _start(name: str, folder: str, first: int, whole: Sequence[Entry]) -> Entry | None:
    """Returns the newest checkpoint before a step; None for the initial weights.

    Only a replay of step 1 starts from the initial weights: it could be long otherwise.
    """
    before = [entry for entry in whole if entry.step < first]
    if before:
        return before[-1]
    if first == 1:
        return None
    steps = ", ".join(str(entry.step) for entry in whole) or "none"
    raise UsageError(
        f"--steps {first}-...: no whole checkpoint of {name} is older than step {first}. Whole "
        f"ones in {folder}: {steps}. Begin after one of them, or at step 1, from the initial "
        "weights"
    )


def _job_of(
    name: str, job: Job, start: Entry | None, within: Mapping[int, CheckpointMetadata]
) -> Job:
    """Returns the job that computed the steps.

    Raises UsageError when its keys changed on the way.
    """
    if not within:
        return job
    first = within[min(within)]
    found = Job.model_validate(first.job, strict=False)
    for step, about in within.items():
        changed = compare(first, Job.model_validate(about.job, strict=False), None)
        if changes := [*changed.errors, *changed.notes]:
            raise UsageError(
                f"{name}: its job changed before step {step} ({'; '.join(changes)}). Audit the "
                f"steps before and after it apart, with --steps"
            )
    if start and start.about and (errors := compare(start.about, found, None).errors):
        raise UsageError(f"{name}: {'; '.join(errors)}")
    return found


def _step(line: Mapping[str, Any]) -> RecordedStep:
    return RecordedStep(
        loss=line.get("loss"),
        grad_norm=line.get("grad_norm"),
        examples=line.get("examples"),
        attempt=line["attempt"],
    )
