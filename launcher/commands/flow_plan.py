"""`launch flow`: flow file + command line -> steps, each of them planned. Starts nothing."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.chains.checkpoints import find_folder
from launcher.commands.flow_steps import FlowRequest, FlowStep, StepFile
from launcher.commands.groups.earlier_job import changes
from launcher.core.errors import SlipwayError
from launcher.core.states import RunState
from launcher.executors.registry import executor_for
from launcher.flow.graph import circles, in_order
from launcher.flow.schema import Flow
from launcher.planning.spec import LaunchSpec
from launcher.runs.folder import find_run
from launcher.runs.registry import is_run
from launcher.runs.status import read_status
from trainer.contract.config.checkpoint_ref import BEST, CheckpointRef
from trainer.contract.config.command import CommandJob
from trainer.contract.config.errors import suggest
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, load
from trainer.contract.errors import Place, Problem


@dataclass(frozen=True)
class FlowPlan:
    """A flow, ready to start."""

    name: str
    steps: Sequence[FlowStep]
    """The steps, each after those that it waits for."""
    runs: Path


def plan_flow(request: FlowRequest) -> FlowPlan:
    """Plans every step. Raises ConfigError with the problems of all steps."""
    flow = load(request.flow_file, Flow)
    read, problems = [], []
    for number, step in enumerate(flow.value.steps):
        try:
            read.append(StepFile(request, flow, number, step).read())
        except ConfigError as error:
            problems += error.problems
    problems += _repeated(read)
    steps: dict[str, FlowStep] = {}
    for step in read:
        steps.setdefault(step.name, step.after_all({one.name for one in read}))
    needs = {name: step.needs for name, step in steps.items()}
    problems += [
        steps[circle[0]].problem(f"a circle, so that none can start: {' waits for '.join(circle)}")
        for circle in circles(needs)
    ]
    problems += _all_problems(steps, request.runs, is_whole=len(read) == len(flow.value.steps))
    if problems:
        raise ConfigError(list(dict.fromkeys(problems)))
    return FlowPlan(flow.value.name, [steps[name] for name in in_order(needs)], request.runs)


def _all_problems(
    steps: Mapping[str, FlowStep], runs: Path, *, is_whole: bool
) -> Iterator[Problem | str]:
    """Yields the problems of each step.

    `is_whole`: whether all steps could be read. Others may have any name that steps refer to.
    """
    unfinished = {name for name in steps if not _has_finished(runs / name)}
    for step in steps.values():
        unknown = _unknown(step, runs, steps) if is_whole else dict.fromkeys(step.refers_to)
        yield from filter(None, unknown.values())
        yield from _source_problems(step, steps)
        yield from _problems(step, runs, unfinished | unknown.keys())


def _repeated(steps: Sequence[FlowStep]) -> Iterator[Problem]:
    first: dict[str, Place] = {}
    for step in steps:
        if step.name in first:
            yield step.problem(
                f"the step of {first[step.name]} is also named {step.name}. Give one of them "
                "another name"
            )
        first.setdefault(step.name, step.where)


def _unknown(
    step: FlowStep, runs: Path, names: Collection[str]
) -> Mapping[str, Problem | None]:  # fmt: skip
    """Returns a problem for each name that is neither a step's nor that of a run."""
    problems = {}
    for name in step.refers_to:
        find = find_run if name in step.job.value.after else find_folder
        try:
            if name not in names:
                find(name, runs)
        except SlipwayError as error:
            hint = suggest(name, names) or f" {error}"
            problems[name] = step.problem(f"{step.name}: no step is named {name}.{hint}")
    return problems


def _source_problems(step: FlowStep, steps: Mapping[str, FlowStep]) -> Iterator[Problem]:
    """Yields a problem for each checkpoint that another step does not save."""
    is_training = isinstance(step.job.value, Job)
    for ref in step.reads:
        if ref.run in steps and (why := _unsaved(ref, steps[ref.run].job.value, is_training)):
            yield step.problem(f"{step.name}: {ref}: {why}")


def _unsaved(ref: CheckpointRef, source: Job | CommandJob, is_training: bool) -> str:
    """Returns why a job does not save a checkpoint, for training or for a command; else ""."""
    if isinstance(source, CommandJob):
        return "that step is a command, so it saves no checkpoints"
    if source.checkpoint is None:
        return "that job saves no checkpoints (checkpoint: null)"
    if source.lora and is_training:
        return "that job saves only adapters. Export it in a step, and start from the folder"
    if ref.at == BEST and source.eval is None:
        return "that job is not evaluated (eval: null), so no checkpoint is the best"
    if isinstance(ref.at, int) and ref.at > source.last_step:
        return f"that job ends with step {source.last_step}"
    return ""


def _problems(step: FlowStep, runs: Path, upcoming: Collection[str]) -> list[Problem | str]:
    """Returns what is wrong with a step itself: its plan, its hosts, and what exists already."""
    try:
        spec = step.plan(runs, upcoming)
    except ConfigError as error:
        return list(error.problems)
    executor = executor_for(spec.cluster, simulated=spec.plan.world.simulated)
    return [*executor.problems(spec), *_in_the_way(step, spec)]


def _in_the_way(step: FlowStep, spec: LaunchSpec) -> Iterator[Problem]:
    """Yields a problem for a run of another job, and for a folder that a command would fill."""
    if is_run(spec.run_dir):
        if found := changes(spec):
            message = (
                f"this step has been run with another job ({', '.join(found)}). Give the step "
                "another name, or move the folder away"
            )
            yield Problem(file=str(spec.run_dir), message=message)
    elif step.creates and step.creates.is_dir() and any(step.creates.iterdir()):
        yield step.problem(f"{step.name}: {step.creates} is not empty. Choose another folder")


def _has_finished(folder: Path) -> bool:
    if not is_run(folder):
        return False
    status = read_status(folder)
    return status.state is RunState.FINISHED and not status.is_alive
