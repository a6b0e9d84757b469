"""Decisions of `launch resume` before anything starts: the job, the cluster and the step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.text import Text

from launcher.chains.link import prepare
from launcher.cluster.schema import ClusterRef, is_path
from launcher.core.errors import UnreachableError
from launcher.core.states import RunState
from launcher.core.usage import Usage
from launcher.executors import new_secrets
from launcher.executors.compile_check import require_fit
from launcher.executors.options import LaunchOptions
from launcher.planning import budget
from launcher.planning.command import CommandLaunch
from launcher.planning.planner import TrainingLaunch
from launcher.planning.spec import LaunchSpec
from launcher.runs import live
from launcher.runs.checkpoints import newest
from launcher.runs.directory import RunDir
from launcher.runs.folder import resume_command
from launcher.runs.history import LastCheckpoint
from launcher.runs.state_file import RecordedState
from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.config.job import BaseJob, Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import CustomModel
from trainer.contract.errors import Problem
from trainer.contract.records.checkpoint_metadata import CheckpointMetadata, folder_of
from trainer.contract.records.compatibility import PARAMS, Continuity, compare, other_parameters


@dataclass(frozen=True)
class Resumed:
    """A run's next attempt, ready to start."""

    launch: LaunchSpec
    newest: CheckpointMetadata | None
    """Checkpoint to resume from; None when this machine finds or reaches none."""
    notes: list[str]
    is_complete: bool

    @property
    def saved(self) -> LastCheckpoint | None:
        """The checkpoint to resume from, as the display shows it."""
        return LastCheckpoint(self.newest.step, self.newest.time) if self.newest else None

    def print_start(self, console: Console) -> None:
        """Prints which attempt follows, and what is different in it."""
        where = f" after step {self.newest.step}" if self.newest else ""
        text = f"{self.launch.job.name} continues{where}: attempt {self.launch.attempt}"
        for line in (text, *self.notes):
            console.print(Text(line), soft_wrap=True)


def prepare_resume(run: RunDir, cluster_ref: ClusterRef, options: LaunchOptions) -> Resumed:
    """Plans a run's next attempt, and makes the checks that need the user or the compiler.

    Says so when the run is complete. Raises ConfigError with every reason against the attempt,
    DoesNotFitError, and InterruptError when a signal ends the check.
    """
    point = plan_resume(run, options.overrides, cluster_ref)
    point = replace(point, launch=replace(point.launch, hot=options.hot))
    if not point.is_complete:
        _check_budget(point.launch)
    new_secrets.confirm(point.launch.job, run.folder, options.overrides)
    if point.is_complete:
        options.console.print(Text(_complete(point)), soft_wrap=True)
    elif options.compile_check:
        require_fit(point.launch)
    return point


def _check_budget(launch: LaunchSpec) -> None:
    """Raises ConfigError when the run has used up its budget."""
    job = launch.job
    if job.budget and (reason := budget.spent(job.budget, _usage(launch.run_dir))):
        more = budget.raised(job.budget, _usage(launch.run_dir))
        again = f"{resume_command(launch.run_dir)} {more}"
        raise ConfigError([f"{launch.run_dir / 'job.yaml'}: {reason}. Raise it: {again}"])


def _usage(folder: Path) -> Usage:
    return live.read_usage(folder, is_alive=False)


def _complete(point: Resumed) -> str:
    launch = point.launch
    message = f"{launch.job.name} is complete"
    if not launch.steps:
        return message
    done = max(launch.steps, point.newest.step if point.newest else 0)
    stops_early = isinstance(launch.job, Job) and launch.job.stop_after_step is not None
    change = "stop_after_step=null" if stops_early else f"steps={2 * launch.steps}"
    more = f"{resume_command(launch.run_dir)} {change}"
    return f"{message}: {done} steps are done. To train further: {more}"


def plan_resume(run: RunDir, overrides: Sequence[str], cluster_ref: ClusterRef) -> Resumed:
    """Plans a run's next attempt. Raises ConfigError with every reason against it."""
    path = run.folder / "job.yaml"
    planned = prepare(path, overrides, cluster_ref, run.folder.parent)
    before = load_job(path).value
    if isinstance(planned, CommandLaunch) or isinstance(before, CommandJob):
        return _plan_command(run, before, planned)
    about, notes = None, []
    problems = _renamed(before, planned.job)
    try:
        about = newest(folder_of(planned.job, run.folder))
        problems += [] if about else _left_behind(before, planned.job, run.folder)
        notes += [] if about else ["no checkpoint yet: the run starts at the first step"]
    except UnreachableError as error:
        notes.append(f"{error}. The hosts look for it themselves")
    found = _compare(about, planned)
    _refuse(path, problems + found.errors)
    attempt = 1 + max(run.last_attempt, about.attempt if about else 0)
    return Resumed(
        launch=replace(planned, run_dir=run.folder, attempt=attempt),
        newest=about,
        notes=[*notes, *(f"changed: {note}" for note in found.notes)],
        is_complete=_is_complete(run.recorded, about, planned.job.last_step),
    )


def _plan_command(run: RunDir, before: BaseJob, planned: LaunchSpec) -> Resumed:
    """Plans a command, which resumes from what it has saved itself."""
    _refuse(run.folder / "job.yaml", _renamed(before, planned.job))
    return Resumed(
        launch=replace(planned, run_dir=run.folder, attempt=1 + run.last_attempt),
        newest=None,
        notes=["the command itself decides where to resume"],
        is_complete=run.recorded.state is RunState.FINISHED,
    )


def _refuse(path: Path, problems: Sequence[str]) -> None:
    if problems:
        raise ConfigError([Problem(file=str(path), message=message) for message in problems])


def new_cluster_ref(
    before: ClusterRef, cluster: str | None, simulate: bool, simulate_hosts: int | None
) -> ClusterRef:
    """Returns a reference to `cluster` with its options, or to the previous cluster.

    New options are added to those of the previous cluster. The path of a cluster file is relative
    to the working directory of the command.
    """
    if cluster is not None:
        name = str(Path(cluster).absolute()) if is_path(cluster) else cluster
        return ClusterRef(name=name, simulate=simulate, simulate_hosts=simulate_hosts)
    return ClusterRef(
        name=before.name,
        simulate=before.simulate or simulate,
        simulate_hosts=simulate_hosts or before.simulate_hosts,
    )


def _compare(about: CheckpointMetadata | None, planned: TrainingLaunch) -> Continuity:
    if about is None:
        return Continuity([], [])
    found = compare(about, planned.job, planned.plan.corpus.sha256)
    if found.errors or not isinstance(planned.job.model, CustomModel):
        return found
    shapes = {array.name: array.shape for array in planned.plan.trained}
    return Continuity(other_parameters(about, shapes, PARAMS), found.notes)


def _renamed(before: BaseJob, job: BaseJob) -> list[str]:
    if job.name == before.name:
        return []
    return [
        f"name: {before.name} -> {job.name}: a run keeps its name; another run is made by "
        "`launch JOB_FILE name=...`"
    ]


def _left_behind(before: Job, job: Job, run_dir: Path) -> list[str]:
    """Reports a new storage without the run's checkpoints. Raises UnreachableError."""
    old, new = folder_of(before, run_dir), folder_of(job, run_dir)
    if old == new or newest(old) is None:
        return []
    return [f"storage: there is no checkpoint in {new}; copy those of {old} there"]


def _is_complete(state: RecordedState, about: CheckpointMetadata | None, steps: int) -> bool:
    """Returns whether the run is done. A finished run that lost its last checkpoint is not."""
    done = about.step if about else state.step or 0
    return done > steps or (done == steps and state.state is RunState.FINISHED)
