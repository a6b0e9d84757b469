"""`launch sweep`: job file + command line -> points, each of them planned. Starts nothing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ConfigDict

from launcher import api
from launcher.cluster.schema import ClusterRef
from launcher.commands.groups.earlier_job import changes
from launcher.executors.registry import executor_for
from launcher.planning.spec import LaunchSpec
from launcher.sweep import halving
from launcher.sweep.points import Grid, Point, PointsError
from trainer.contract.config.base import Section
from trainer.contract.config.job import Job, RunName
from trainer.contract.config.loader import ConfigError, Loaded, load
from trainer.contract.config.program_keys import program_keys
from trainer.contract.config.sweep import Axis, Sweep, check_key, parse_axis
from trainer.contract.config.yaml import dump_inline
from trainer.contract.errors import Place, Problem


@dataclass(frozen=True, kw_only=True)
class SweepRequest:
    """The arguments of `launch sweep`."""

    job_file: Path
    arguments: Sequence[str]
    """KEY=VALUE, KEY=VALUE,VALUE or KEY=log(LOW,HIGH)."""
    samples: int | None
    seed: int | None
    early_stop: bool
    cluster_ref: ClusterRef
    runs: Path


@dataclass(frozen=True)
class PlannedPoint:
    """A point, and what `launch run` would start for it."""

    point: Point
    spec: LaunchSpec

    @property
    def shape(self) -> str:
        """What the compiled step depends on: points of one shape share a compilation."""
        job = self.spec.job
        return program_keys(job) if isinstance(job, Job) else job.name

    def until(self, step: int | None) -> LaunchSpec:
        """Returns what runs the point to a step; to its end for None."""
        if step is None:
            return self.spec
        job = self.spec.job.model_copy(update={"stop_after_step": step})
        return replace(self.spec, job=job)


@dataclass(frozen=True)
class SweepPlan:
    """A sweep, ready to start."""

    name: str
    points: Sequence[PlannedPoint]
    rungs: Sequence[int]
    """Steps at which the better half of the points continues; empty without early stopping."""
    runs: Path


class _SweepFile(Section):
    """The keys of a job file that belong to the sweep itself; points have all others."""

    model_config = ConfigDict(extra="ignore")

    name: RunName
    sweep: Sweep | None = None


def plan_sweep(request: SweepRequest) -> SweepPlan:
    """Plans every point. Raises ConfigError with the problems of all points."""
    fixed, axes, problems = _parsed(request.arguments)
    try:
        loaded = load(request.job_file, _SweepFile, fixed)
    except ConfigError as error:
        raise ConfigError([*problems, *error.problems]) from None
    if problems:
        raise ConfigError(problems)
    grid, section = _grid(request, loaded, fixed, axes), loaded.value.sweep
    try:
        points = grid.points(loaded.value.name)
    except PointsError as error:
        problems = [Problem(file=loaded.source, message=problem) for problem in error.problems]
        raise ConfigError(problems) from None
    of_file = {key: loaded.places["sweep", "values", key] for key in grid.axes if key not in axes}
    planned = _plan_points(request, points, fixed, of_file)
    stops_early = request.early_stop or (section is not None and section.early_stop)
    rungs = _rungs(request.job_file, planned) if stops_early else []
    return SweepPlan(loaded.value.name, planned, rungs, request.runs.absolute())


def _parsed(arguments: Sequence[str]) -> tuple[list[str], dict[str, Axis], list[Problem]]:
    """Returns the overrides of all points, the swept keys, and the problems of the arguments."""
    fixed, axes, problems = [], {}, []
    for argument in arguments:
        key, equals, text = argument.partition("=")
        key = key.strip()
        try:
            axis = parse_axis(text)
            if not equals or (isinstance(axis, tuple) and len(axis) == 1):
                fixed.append(argument)  # the loader reports what is wrong with it
                continue
            check_key(key)
            if key in axes:
                raise ValueError(f"{key} is swept twice")
            axes[key] = axis
        except ValueError as error:
            problems.append(Problem(override=argument, key=key or None, message=str(error)))
    return fixed, axes, problems


def _grid(
    request: SweepRequest,
    loaded: Loaded[_SweepFile],
    fixed: Sequence[str],
    axes: Mapping[str, Axis],
) -> Grid:
    """Combines the section with the command line, which takes precedence."""
    section = loaded.value.sweep
    set_here = {override.partition("=")[0].strip() for override in fixed}
    of_file = section.axes if section else {}
    kept = {key: axis for key, axis in of_file.items() if key not in set_here}
    samples = request.samples if request.samples is not None else section and section.samples
    seed = request.seed if request.seed is not None else section.seed if section else 0
    return Grid({**kept, **axes}, samples, seed)


def _plan_points(
    request: SweepRequest,
    points: Sequence[Point],
    fixed: Sequence[str],
    of_file: Mapping[str, Place],
) -> list[PlannedPoint]:
    """Plans and checks all points. Raises ConfigError with the problems of all of them."""
    planned, problems = [], list[Problem | str]()
    for point in points:
        try:
            spec = api.plan(
                request.job_file,
                cluster=request.cluster_ref.name,
                simulate=request.cluster_ref.simulate,
                simulate_hosts=request.cluster_ref.simulate_hosts,
                overrides=[*fixed, *point.overrides],
                runs=request.runs,
            )
            executor = executor_for(spec.cluster, simulated=spec.plan.world.simulated)
            problems += [*executor.problems(spec), *_other_job(spec)]
            planned.append(PlannedPoint(point, spec))
        except ConfigError as error:
            problems += [_located(problem, point, of_file) for problem in error.problems]
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return planned


def _located(problem: Problem, point: Point, of_file: Mapping[str, Place]) -> Problem:
    """Returns a point's problem with the line of the job file that has the value."""
    for key, place in of_file.items():
        override = f"{key}={dump_inline(point.values[key])}"
        if problem.override == override:
            message = f"{override}: {problem.message}"
            return replace(problem, **vars(place), message=message, key=None)
    return problem


def _other_job(spec: LaunchSpec) -> list[Problem]:
    """Returns a problem when the folder has a run of another job than the point's."""
    if not (found := changes(spec)):
        return []
    message = (
        f"this point has been run with another job ({', '.join(found)}). Give the sweep another "
        "name (name=...), or move the folder away"
    )
    return [Problem(file=str(spec.run_dir), message=message)]


def _rungs(job_file: Path, planned: Sequence[PlannedPoint]) -> list[int]:
    """Returns the steps of the comparisons. Raises ConfigError for jobs that cannot stop early."""
    jobs = [each.spec.job for each in planned]
    training = [job for job in jobs if isinstance(job, Job)]
    problems = [
        problem
        for is_wrong, problem in (
            (len(training) < len(jobs), "command: its steps are unknown"),
            (any(job.eval is None for job in training), "eval: null. Points are compared by it"),
            (any(job.checkpoint is None for job in training), "checkpoint: null. It is resumed"),
            (len({job.last_step for job in training}) > 1, "steps: points have different numbers"),
        )
        if is_wrong
    ]
    if problems:
        found = [f"early stopping: {problem}" for problem in problems]
        raise ConfigError([Problem(file=str(job_file), message=message) for message in found])
    warmup_steps = max(job.optimizer.warmup_steps for job in training)
    return halving.rungs(training[0].last_step, warmup_steps)
