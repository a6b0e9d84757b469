"""What each part of a run's wall time consists of, and what to change: a key, a flag, a command."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.core.formatting import format_seconds, pluralize
from launcher.diagnosis.parts import PartKind, TimePart, is_small
from launcher.runs.folder import run_word
from launcher.runs.goodput import SHOWN_FROM_S, Part
from launcher.runs.run_record import RunRecord
from trainer.contract.config.checkpoint import Checkpoint
from trainer.contract.config.job import Job
from trainer.contract.protocol.process_names import process_name

TARGET = 0.01
"""Share of the wall time that the advice on saves and evaluations aims at."""
MOST_FACTOR = 100
"""Largest factor by which an interval is to grow."""
TITLES = {
    PartKind.BOUND: "steps at the plan's bound",
    PartKind.COLLECTIVES: "exposed collectives",
    PartKind.ABOVE_BOUND: "steps above the bound",
    PartKind.DATA_WAIT: "data wait",
}
"""Names of the kinds that are not named as in the code."""


@dataclass(frozen=True)
class Explanation:
    """A part of the wall time in words."""

    title: str
    text: str
    """What it consists of; "" when the title says all."""
    changes: list[str]
    """What to change, the most useful first; empty for a part that is too short to act on."""


def explain(part: TimePart, record: RunRecord) -> Explanation:
    """Returns what a part of the wall time consists of, and what to change."""
    find = CHANGES.get(part.kind)
    is_worth = find is not None and not is_small(part.seconds, record.goodput.wall_s)
    return Explanation(
        title=TITLES.get(part.kind, part.kind.value),
        text="; ".join(filter(None, TEXTS.get(part.kind, _parts_text)(part, record))),
        changes=list(find(part, record)) if find and is_worth else [],
    )


def _parts_text(part: TimePart, _: RunRecord) -> Iterator[str]:
    """Yields the parts of the goodput with their seconds, if there are several."""
    parts = sorted(part.of_parts.items(), key=lambda item: -item[1])
    shown = [(name.replace("_", " "), s) for name, s in parts if s >= SHOWN_FROM_S]
    if len(shown) > 1:
        yield ", ".join(f"{name} {format_seconds(seconds)}" for name, seconds in shown)


def _steps_text(_: TimePart, __: RunRecord) -> Iterator[str]:
    yield "no bound to compare with, because the speed of the devices or the model is unknown"


def _bound_text(_: TimePart, __: RunRecord) -> Iterator[str]:
    yield "arithmetic and HBM at their peak"


def _collectives_text(_: TimePart, __: RunRecord) -> Iterator[str]:
    yield "at most: the least time of the plan's collectives, as if nothing overlapped with them"


def _collectives_changes(_: TimePart, record: RunRecord) -> Iterator[str]:
    yield f"rank other meshes: launch plan{_cluster_option(record)} {_job_file(record)} --search"
    yield from _profile(record)


def _above_bound_changes(_: TimePart, record: RunRecord) -> Iterator[str]:
    yield from _profile(record)
    if isinstance(record.job, Job) and record.job.data.grad_accum_steps > 1:
        yield "fewer micro-batches, if memory allows: data.grad_accum_steps"
    search = f"launch plan{_cluster_option(record)} {_job_file(record)} --search"
    yield f"rank remat policies and micro-batches: {search}"


def _stragglers_text(_: TimePart, record: RunRecord) -> Iterator[str]:
    texts = dict.fromkeys(slow.text for slow in record.slowdowns)
    yield "; ".join(filter(None, texts))


def _stragglers_changes(_: TimePart, record: RunRecord) -> Iterator[str]:
    process, _count = Counter(slow.process for slow in record.slowdowns).most_common(1)[0]
    if record.status.is_alive:
        command = f"launch exec {run_word(record.folder)} --host {process} -- top -b -n 1"
        name = process_name(process, record.processes_per_host)
        yield f"see what uses {name}: {command}"
    yield "a spare takes the place of a host that stays slow: spares: 1 in the cluster file"


def _data_wait_changes(_: TimePart, record: RunRecord) -> Iterator[str]:
    data = record.job.data if isinstance(record.job, Job) else None
    if record.status.is_alive:
        yield f"see where the loader waits: launch stacks {run_word(record.folder)} --full"
    if data and "://" in (data.path or ""):
        yield f"copy {data.path} to a disk of each host and set data.path"
    elif data and data.source != "tokens":
        yield "keep the token cache on a local disk of each host: XDG_CACHE_HOME"
    if data is None:
        yield "prepare the next batches in a thread while the step runs"


def _compilation_text(_: TimePart, record: RunRecord) -> Iterator[str]:
    if record.compiled:
        cached = sum(event.from_cache for event in record.compiled)
        count = pluralize(len(record.compiled), "program")
        yield f"{count} compiled or read, {cached} of them from the compile cache"


def _compilation_changes(_: TimePart, record: RunRecord) -> Iterator[str]:
    if not all(event.from_cache for event in record.compiled) or not record.compiled:
        yield (
            "keep the compile cache for the next start: XDG_CACHE_HOME on a disk that the hosts "
            "keep or share"
        )


def _checkpoints_text(part: TimePart, record: RunRecord) -> Iterator[str]:
    yield from _parts_text(part, record)
    yield pluralize(record.saves, "checkpoint")


def _checkpoints_changes(part: TimePart, record: RunRecord) -> Iterator[str]:
    checkpoint = record.job.checkpoint if isinstance(record.job, Job) else None
    chooses = checkpoint is not None and checkpoint.every_minutes == "auto"
    if checkpoint is not None and record.saves > 1 and not chooses:
        yield f"save less often: {_longer(checkpoint, _factor(part, record))}"
    if part.of_parts.get(Part.COMMIT, 0.0) > part.seconds / 2:
        yield "a save is awaited before the next one and at the end: set storage to a faster disk"


def _longer(checkpoint: Checkpoint, factor: int) -> str:
    """Returns the key that makes the interval between saves longer, with its value."""
    if checkpoint.every_steps:
        return f"checkpoint.every_steps={checkpoint.every_steps * factor}"
    assert checkpoint.every_minutes != "auto"
    return f"checkpoint.every_minutes={(checkpoint.every_minutes or 10.0) * factor:g}"


def _evaluation_changes(part: TimePart, record: RunRecord) -> Iterator[str]:
    job, factor = record.job, _factor(part, record)
    if not isinstance(job, Job):
        return
    if job.eval and part.of_parts.get(Part.EVALUATE, 0.0) >= SHOWN_FROM_S:
        if sum("loss" not in line for line in record.metrics) > 1:
            yield f"evaluate less often: eval.every_steps={job.eval.every_steps * factor}"
        elif job.eval.batches > 1:
            yield f"evaluate on fewer batches: eval.batches={max(1, job.eval.batches // 2)}"
    if job.sample and part.of_parts.get(Part.SAMPLE, 0.0) >= SHOWN_FROM_S:
        yield f"generate fewer tokens: sample.tokens={max(1, job.sample.tokens // 2)}"


def _start_changes(part: TimePart, record: RunRecord) -> Iterator[str]:
    largest = max(part.of_parts, key=lambda name: part.of_parts[name])
    cluster = record.status.recorded.cluster
    if cluster and (cluster.simulated or cluster.name == "local"):
        hosts = f" --simulate-hosts {cluster.simulate_hosts}" if cluster.simulate_hosts else ""
        yield f"keep hosts and trainers ready for the next run: launch up {cluster.name}{hosts}"
    elif largest is Part.PROVISIONING:
        yield "the provider took this long to supply hosts: launch doctor shows what they lack"
    if largest is Part.DATA:
        yield "keep the token cache for the next start: XDG_CACHE_HOME on a disk that stays"
    if largest is Part.RESTORE:
        yield "restore from a faster disk: storage"


def _restarts_text(part: TimePart, record: RunRecord) -> Iterator[str]:
    ends = [end for end in record.ends if not end.end_reason.is_orderly]
    reasons = Counter(end.end_reason.value for end in ends)
    counts = ", ".join(f"{number} x {reason}" for reason, number in reasons.most_common())
    yield f"attempts that failed: {counts}" if counts else ""
    yield f"last: {ends[-1].reason}" if ends else ""
    yield from _parts_text(part, record)


def _restarts_changes(part: TimePart, record: RunRecord) -> Iterator[str]:
    seconds, job = part.of_parts, record.job
    is_lost_most = seconds.get(Part.LOST, 0.0) >= part.seconds / 2
    checkpoint = job.checkpoint if isinstance(job, Job) else None
    if is_lost_most and checkpoint and not checkpoint.in_memory_every_steps:
        yield "lose fewer steps: checkpoint.in_memory_every_steps=auto"
    elif is_lost_most and isinstance(job, Job) and not checkpoint:
        yield "save the state: checkpoint: {every_minutes: 10}"
    if seconds.get(Part.WAITING, 0.0) >= part.seconds / 2:
        yield "keep a host ready that takes the place of a lost one: spares: 1 in the cluster file"
    if job is not None and job.retries.standby_after_s is None:
        yield "keep a process ready for the next attempt: retries.standby_after_s=15"
    failed = [end.process for end in record.ends if not end.end_reason.is_orderly]
    if failed and failed[-1] is not None:
        yield f"see why: launch logs {run_word(record.folder)} --host {failed[-1]} --tail 100"


def _program_text(_: TimePart, __: RunRecord) -> Iterator[str]:
    yield "the program reports neither phases nor steps"


def _program_changes(_: TimePart, __: RunRecord) -> Iterator[str]:
    yield "send events, see docs/reference/process-contract.md"


def _factor(part: TimePart, record: RunRecord) -> int:
    """Returns the factor of an interval after which a part takes TARGET of the wall time."""
    share = part.seconds / record.goodput.wall_s
    return min(MOST_FACTOR, max(2, math.ceil(share / TARGET)))


def _profile(record: RunRecord) -> Iterator[str]:
    if record.status.is_alive:
        yield f"trace some steps: launch profile {run_word(record.folder)} --steps 3"
    else:
        yield "trace some steps of the next run: profile: {steps: [10, 12]}"


def _cluster_option(record: RunRecord) -> str:
    cluster = record.status.recorded.cluster
    return f" --cluster {cluster.name}" if cluster else ""


def _job_file(record: RunRecord) -> str:
    return str(record.folder / "job.yaml")


Texts = Callable[[TimePart, RunRecord], Iterator[str]]
TEXTS: dict[PartKind, Texts] = {
    PartKind.BOUND: _bound_text,
    PartKind.STEPS: _steps_text,
    PartKind.COLLECTIVES: _collectives_text,
    PartKind.STRAGGLERS: _stragglers_text,
    PartKind.COMPILATION: _compilation_text,
    PartKind.CHECKPOINTS: _checkpoints_text,
    PartKind.RESTARTS: _restarts_text,
    PartKind.PROGRAM: _program_text,
}
CHANGES: dict[PartKind, Texts] = {
    PartKind.COLLECTIVES: _collectives_changes,
    PartKind.STRAGGLERS: _stragglers_changes,
    PartKind.ABOVE_BOUND: _above_bound_changes,
    PartKind.DATA_WAIT: _data_wait_changes,
    PartKind.COMPILATION: _compilation_changes,
    PartKind.CHECKPOINTS: _checkpoints_changes,
    PartKind.EVALUATION: _evaluation_changes,
    PartKind.START: _start_changes,
    PartKind.RESTARTS: _restarts_changes,
    PartKind.PROGRAM: _program_changes,
}
