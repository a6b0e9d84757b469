"""The current status of a run, from its folder. Cheap enough to read for many runs."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from launcher.cluster.schema import ClusterRef
from launcher.core.errors import HostError
from launcher.core.exit_codes import INTERRUPTED, JOB_FAILED, OK
from launcher.core.files import last_object, parse_object, read_object
from launcher.core.messages import from_wire
from launcher.core.printable import plain
from launcher.core.states import RunState
from launcher.core.usage import Usage, UsageResult
from launcher.queue.folder import Place, QueueError, place_of, queue_of
from launcher.runs.folder import (
    REMOTE,
    RunFolderError,
    is_alive,
    resume_command,
    run_word,
    stop_command,
)
from launcher.runs.goodput import Goodput, Part
from launcher.runs.records import RunRecordError
from launcher.runs.registry import is_run, registered
from launcher.runs.slurm_job import queued
from launcher.runs.state_file import KnownState, RecordedState

EXIT_CODES = {
    RunState.FINISHED: OK,
    RunState.FAILED: JOB_FAILED,
    RunState.CANCELLED: JOB_FAILED,
    RunState.LOST: JOB_FAILED,
    RunState.OVER_BUDGET: INTERRUPTED,
    RunState.STOPPED: INTERRUPTED,
    RunState.INTERRUPTED: INTERRUPTED,
}
"""Exit code of a command that waited for a run, by the run's terminal state."""


@dataclass(frozen=True)
class PrintedCheckpoint:
    """The last checkpoint in a `PrintedStatus`."""

    step: int


@dataclass(frozen=True)
class PrintedGoodput:
    """The goodput in a `PrintedStatus`."""

    parts_s: Mapping[str, float]

    def goodput(self) -> Goodput:
        """Returns the goodput. Parts of another version of Slipway are left out."""
        return Goodput({part: self.parts_s.get(part, 0.0) for part in Part})


@dataclass(frozen=True, kw_only=True)
class PrintedStatus:
    """The fields of `launch status -o json` that are read on another machine."""

    alive: bool
    state: KnownState = RunState.UNKNOWN
    reason: str | None = None
    attempt: int | None = None
    step: int | None = None
    steps: int | None = None
    loss: float | None = None
    cluster: ClusterRef | None = None
    changed: float = 0.0
    checkpoint: PrintedCheckpoint | None = None
    goodput: PrintedGoodput | None = None

    @classmethod
    def parse(cls, output: str, host: str) -> Self:
        """Returns the status in what `launch status -o json` has printed on a host.

        Raises HostError when there is none, or when a field is missing or wrong.
        """
        found = parse_object(output[output.find("{") :])
        if found is None:
            raise HostError(f"{host}: `launch status` printed no status on it")
        return from_wire(cls, found, f"{host}: the output of `launch status`", HostError)


@dataclass(frozen=True)
class RunStatus:
    """The status of a run when its folder was read."""

    folder: Path
    state: RunState
    """State from state.json, or what its absence and the run's lock imply."""
    is_alive: bool
    """Whether a process runs it now."""
    recorded: RecordedState
    """Contents of state.json."""
    step: int | None
    """Last reported step."""
    loss: float | None
    changed_at: float
    """When its files last changed, in seconds since the epoch."""
    remote_host: str = ""
    """The host that has a REMOTE run."""

    @classmethod
    def of_remote(cls, folder: Path, printed: PrintedStatus) -> "RunStatus":
        """Returns the status that `launch status -o json` has printed on another machine."""
        recorded = RecordedState(
            attempt=printed.attempt,
            steps=printed.steps,
            cluster=printed.cluster,
            reason=printed.reason,
            checkpoint=printed.checkpoint and printed.checkpoint.step,
        )
        return cls(
            folder=folder,
            state=printed.state,
            is_alive=printed.alive,
            recorded=recorded,
            step=printed.step,
            loss=printed.loss,
            changed_at=printed.changed,
        )

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def displayed_state(self) -> str:
        """The state for display; that of a remote run names its host."""
        return f"on {self.remote_host}" if self.state is RunState.REMOTE else self.state.value

    @property
    def attempt(self) -> int | None:
        return self.recorded.attempt

    @property
    def steps(self) -> int | None:
        return self.recorded.steps

    @property
    def last_checkpoint(self) -> int | None:
        """Step of the last checkpoint when the run's state last changed; None without one."""
        return self.recorded.checkpoint

    @property
    def cluster_name(self) -> str:
        cluster = self.recorded.cluster
        return Path(cluster.name).stem if cluster else ""

    @property
    def is_simulated(self) -> bool:
        return self.recorded.cluster is not None and self.recorded.cluster.simulated

    @property
    def cluster(self) -> str:
        """Name of the cluster, and whether it is simulated."""
        return self.cluster_name + " (simulated)" * self.is_simulated

    @property
    def position(self) -> str:
        """Progress as "340/1000"; "" before the first step."""
        if self.step is None:
            return ""
        return f"{self.step}/{self.steps}" if self.steps else f"{self.step}"

    @property
    def left(self) -> str:
        """Kubernetes resources that an ended run has left, and how to delete them; "" if none."""
        note = self.folder / "kubernetes.json"
        if self.is_alive or not note.exists():
            return ""
        name = read_object(note).get("name", "of an unknown name")
        return f"RayCluster {name} in Kubernetes; delete it with: {stop_command(self.folder)}"

    @property
    def exit_code(self) -> int:
        """Exit code of a command that waited for the run."""
        return EXIT_CODES.get(self.state, OK)

    def result(self, place: Place | None = None, usage: Usage | None = None) -> "RunResult":
        """Returns the status for a command's JSON output; see `PrintedStatus`.

        `place`: its place in a queue; None when it does not wait in one of Slipway's.
        """
        return RunResult(
            name=self.name,
            folder=str(self.folder),
            state=self.displayed_state,
            alive=self.is_alive,
            queue=place,
            exit_code=None if self.is_alive else self.exit_code,
            reason=self.recorded.reason,
            left=self.left or None,
            attempt=self.attempt,
            step=self.step,
            steps=self.steps,
            loss=self.loss,
            cluster=self.recorded.cluster,
            changed=self.changed_at,
            usage=usage and usage.result(),
        )


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """A run and its current state."""

    name: str
    folder: str
    """The run's directory."""
    state: str
    """State of the run; "on HOST" when a remote host has it."""
    alive: bool
    """Whether a process runs it now."""
    queue: Place | None
    """Its place in the queue of its cluster; None when it does not wait in one of Slipway's."""
    exit_code: int | None
    """Exit code of a command that waited for the run; None while it is alive."""
    reason: str | None
    """Why the run is in this state."""
    left: str | None
    """Resources that an ended run has left, and the command that deletes them."""
    attempt: int | None
    """Number of the last attempt, from 1."""
    step: int | None
    """Last reported step."""
    steps: int | None
    """Number of steps of the job; None for a job with `command`."""
    loss: float | None
    """Last reported training loss."""
    cluster: ClusterRef | None
    """Where the run was started."""
    changed: float
    """When its files last changed, in seconds since the epoch."""
    usage: UsageResult | None
    """What it has used of its hosts, with --cost; None otherwise."""


def read_status(folder: Path) -> RunStatus:
    """Reads the status of the run in a folder.

    Raises RunFolderError when its lock cannot be queried, RunRecordError when state.json has a
    wrong field.
    """
    alive = is_alive(folder)  # before the state: the final one is written before the lock is free
    recorded = RecordedState.read(folder)
    remote_host = read_object(folder / REMOTE).get("head_name") or ""
    state = recorded.state or (RunState.REMOTE if remote_host else RunState.BY_HAND)
    if recorded.state and not alive and not state.is_terminal:
        alive = is_alive(folder)  # it may have begun between the two reads
        if not alive:
            state = RunState.QUEUED if _is_queued(folder, state) else RunState.LOST
    last = _last_step(folder)
    return RunStatus(
        folder=folder,
        state=state,
        is_alive=alive,
        recorded=recorded,
        step=last.step,
        loss=last.loss,
        changed_at=_changed_at(folder),
        remote_host=remote_host,
    )


def take_all(runs: Path) -> list[RunStatus]:
    """Returns all runs in `runs` and all registered runs, the newest first."""
    here = [folder.absolute() for folder in _folders(runs) if is_run(folder)]
    once = {folder.resolve(): folder for folder in (*registered(), *here)}
    return sorted(map(_take_any, once.values()), key=lambda found: found.changed_at, reverse=True)


def _take_any(folder: Path) -> RunStatus:
    """Returns a run's status; `unknown` if reading it fails, so that it hides no other run."""
    try:
        return read_status(folder)
    except (RunFolderError, RunRecordError, QueueError):
        recorded, changed_at = RecordedState.read_valid(folder), _changed_at(folder)
        return RunStatus(folder, RunState.UNKNOWN, False, recorded, None, None, changed_at)


def describe(found: RunStatus) -> str:
    """Describes a run's status in a sentence, with the command that continues it."""
    if found.is_alive:
        return f"{found.name} is running: {found.displayed_state}"
    match found.state:
        case RunState.QUEUED:
            command = f"launch attach {run_word(found.folder)}"
            place = place_of(found.folder)
            where = f"a queue: {place}" if place else "a queue"
            return f"{found.name} waits in {where}; follow it with: {command}"
        case RunState.FINISHED:
            steps = f": {found.position} steps" if found.position else ""
            return f"{found.name} finished{steps}"
        case RunState.BY_HAND:
            return f"{found.name} was started by hand, without a launcher"
        case _:
            saved = found.recorded.checkpoint
            checkpoint = f", checkpoint of step {saved}" if saved else ""
            end = f"{_end(found)}{checkpoint}"
            return f"{found.name} {end}; continue with: {resume_command(found.folder)}"


def _end(found: RunStatus) -> str:
    """Describes the end of a run that has not finished: "failed at step 7: ..."."""
    where = f" at step {found.step}" if found.step else " before the first step" * bool(found.steps)
    match found.state:
        case RunState.FAILED:
            return f"failed{where}: {plain(found.recorded.reason or 'see its logs')}"
        case RunState.OVER_BUDGET:
            return f"was stopped{where}: {plain(found.recorded.reason or 'the budget is used up')}"
        case RunState.CANCELLED:
            return f"was cancelled: {plain(found.recorded.reason or '')}"
        case RunState.LOST if found.recorded.state is RunState.QUEUED:
            return f"was lost{where}: it is in no queue"
        case RunState.LOST:
            return f"was lost{where}: the launcher process exited without recording a result"
        case _:
            return f"was {found.displayed_state}{where}"


def _is_queued(folder: Path, state: RunState) -> bool:
    """Returns whether the run waits in a queue, as far as this machine can query it.

    Slurm itself requeues a job that lost a host.
    """
    if state is RunState.QUEUED and queue_of(folder):
        return True
    try:
        job = queued(folder)
    except HostError:
        return state is RunState.QUEUED
    return job is not None and (state is RunState.QUEUED or job.state == "PENDING")


@dataclass(frozen=True)
class _LastStep:
    """The last step of a run, and its loss."""

    step: int | None
    loss: float | None


def _last_step(folder: Path) -> _LastStep:
    """Returns the last step in metrics.jsonl, or in the events if a program has no metrics.

    A number of another type counts as unknown.
    """
    metrics = last_object(folder / "metrics.jsonl", lambda line: "loss" in line)
    line = metrics or last_object(folder / "events.jsonl", lambda line: line.get("event") == "step")
    step, loss = line.get("step"), line.get("loss")
    return _LastStep(
        step if isinstance(step, int) else None, loss if isinstance(loss, float | int) else None
    )


def _changed_at(folder: Path) -> float:
    times = [0.0]
    for name in ("state.json", "events.jsonl", "metrics.jsonl", "job.yaml"):
        try:
            times.append((folder / name).stat().st_mtime)
        except OSError:
            continue  # not written yet
    return max(times)


def _folders(runs: Path) -> Iterator[Path]:
    try:
        with os.scandir(runs) as entries:
            yield from [Path(entry.path) for entry in entries if entry.is_dir()]
    except OSError:
        return  # there are no runs here
