"""Plans a job of a chain: checks its `after`, and finds the checkpoint of its `init_from`."""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from launcher.chains.checkpoints import find_source
from launcher.cluster.schema import ClusterRef
from launcher.core.errors import SlipwayError
from launcher.core.states import RunState
from launcher.planning.command import CommandLaunch
from launcher.planning.planner import TrainingLaunch, load, make_launch
from launcher.planning.spec import LaunchSpec
from launcher.runs.folder import find_run
from launcher.runs.status import read_status
from trainer.contract.config.checkpoint_ref import CheckpointRef, parse_checkpoint_ref
from trainer.contract.config.command import load_job
from trainer.contract.config.job import BaseJob, Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.errors import Problem
from trainer.contract.hugging_face.config import check, is_hugging_face
from trainer.contract.storage.paths import is_url, to_path

L = TypeVar("L", bound=LaunchSpec)
Problems = Callable[[str, str], Problem]
"""Function of a key and a message."""
AFTER, INIT_FROM = "after", "checkpoint.init_from"


def prepare(
    job_file: Path,
    overrides: Sequence[str],
    cluster_ref: ClusterRef,
    runs: Path,
    upcoming: Collection[str] = (),
) -> TrainingLaunch | CommandLaunch:
    """Builds a launch from the arguments of a command.

    `upcoming`: names of runs that other launches start before this one. Raises ConfigError with
    every problem of the files, the overrides, their fit and the other runs.
    """
    job, cluster = load(job_file, overrides, cluster_ref.name)
    return link(make_launch(job, cluster, runs, cluster_ref), job.problem, upcoming)


def link(launch: L, problem: Problems, upcoming: Collection[str] = ()) -> L:
    """Returns the launch with the folder of the checkpoint that its weights are read from.

    The reference stays as long as its run is in `after` and has not finished. `problem` returns
    the problem of a key with its place. Raises ConfigError for runs and checkpoints that do not
    exist, and for a Hugging Face folder of another model.
    """
    problems = [problem(AFTER, message) for message in _after_problems(launch, upcoming)]
    try:
        linked = resolve(launch, upcoming)
    except SlipwayError as error:
        raise ConfigError([*problems, problem(INIT_FROM, str(error))]) from None
    problems += [problem(INIT_FROM, message) for message in _differences(linked.job)]
    if problems:
        raise ConfigError(problems)
    return linked


def resolve(launch: L, upcoming: Collection[str] = ()) -> L:
    """Returns the launch with an explicit checkpoint folder, see `link`.

    Raises what `find_source` raises.
    """
    ref = source_of(launch.job)
    runs = launch.run_dir.parent
    if ref is None or ref.run in upcoming or _is_awaited(launch.job, ref, runs):
        return launch
    assert isinstance(launch.job, Job) and launch.job.checkpoint
    folder = str(find_source(ref, runs).folder)
    checkpoint = launch.job.checkpoint.model_copy(update={"init_from": folder})
    return replace(launch, job=launch.job.model_copy(update={"checkpoint": checkpoint}))


def _differences(job: BaseJob) -> list[str]:
    """Returns the keys in which a Hugging Face folder in `init_from` differs from the job.

    A folder that this machine does not see is not compared: the trainer does that.
    """
    source = job.checkpoint and job.checkpoint.init_from if isinstance(job, Job) else None
    if source is None or is_url(source) or not is_hugging_face(folder := Path(to_path(source))):
        return []
    assert isinstance(job, Job)
    try:
        check(folder, job)
    except ConfigError as error:
        return error.lines
    return []


def source_of(job: BaseJob) -> CheckpointRef | None:
    """Returns the reference in `init_from`; None without one."""
    if not isinstance(job, Job) or job.checkpoint is None:
        return None
    return parse_checkpoint_ref(job.checkpoint.init_from or "")


def _is_awaited(job: BaseJob, ref: CheckpointRef, runs: Path) -> bool:
    """Returns whether the run of the reference is in `after` and has not finished."""
    if ref.run not in job.after:
        return False
    status = read_status(find_run(ref.run, runs))
    return status.is_alive or status.state is not RunState.FINISHED


def _after_problems(launch: LaunchSpec, upcoming: Collection[str]) -> Iterator[str]:
    runs = launch.run_dir.parent
    for name in launch.job.after:
        if name in upcoming:
            continue
        try:
            circle = _circle([launch.run_dir.name, name], runs)
            if circle:
                yield f"a circle, so that none can start: {' waits for '.join(circle)}"
                continue
            status = read_status(find_run(name, runs))
            if status.state is RunState.BY_HAND and not status.is_alive:
                yield f"{name} was started by hand, so its end is not recorded"
        except SlipwayError as error:
            yield str(error)


def _circle(path: list[str], runs: Path) -> list[str]:
    """Returns the names of runs that wait for each other, from the first of `path` back to it.

    Returns [] when there is no such circle. Raises RunFolderError for an unknown run.
    """
    first, *_, last = path
    if last == first:
        return path
    if last in path[:-1]:
        return []  # a circle without the first run
    after = load_job(find_run(last, runs) / "job.yaml").value.after
    return next(filter(None, (_circle([*path, name], runs) for name in after)), [])
