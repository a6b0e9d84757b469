"""The state that a run starts from: a checkpoint's, one with given weights, or a new one."""

import math
from dataclasses import dataclass, field, replace

import jax
from etils import epath

from trainer.checkpoint.restore import Restored, Restorer, moved, restore_step
from trainer.checkpoint.weights import initial, teacher
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol.host_memory import Stamp
from trainer.contract.records.checkpoint_metadata import Base, CheckpointMetadata
from trainer.contract.records.compatibility import program_changes
from trainer.contract.records.exclusions import Exclusions
from trainer.step.spikes import RecentSteps
from trainer.step.train_state import TrainState
from trainer.step.train_step import TrainProgram
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import Report


@dataclass
class HostChecks:
    """How far the hosts of a run have been found to compute the same."""

    step: int | None
    """Newest step whose state a later check has confirmed; None without checks."""


@dataclass(frozen=True)
class InitialState:
    """The state and the progress at which the loop begins."""

    state: TrainState[jax.Array]
    step: int = 0
    """Completed steps."""
    examples: int = 0
    """Examples trained on."""
    loss: float = math.nan
    """Loss of the last completed step."""
    base: Base | None = None
    """The base model of the adapters, in a job that trains adapters."""
    teacher: Base | None = None
    """The teacher, in a distillation."""
    stamp: Stamp | None = None
    """The in-memory checkpoint that it was read from."""
    recent: RecentSteps = field(default_factory=RecentSteps)
    """The last steps, which the next ones are compared with."""
    excluded: Exclusions = ()
    """The examples that the run had left out when the state was saved."""
    checks: HostChecks = field(default_factory=lambda: HostChecks(None))


def at_step(
    source: epath.Path, program: TrainProgram, corpus_sha256: str
) -> tuple[TrainState[jax.Array], CheckpointMetadata]:
    """Returns the state in a step folder of any run, with the frozen weights of its base.

    Raises what `restore_step` and `initial` raise.
    """
    state, about = restore_step(
        source, program.job, corpus_sha256, program.shapes, program.shardings
    )
    if about.base:
        base = initial(about.base.source, program, about.base)
        state = state._replace(frozen_params=base.params)
    return with_teacher(state, program, about)[0], about


def with_teacher(
    state: TrainState[jax.Array], program: TrainProgram, about: CheckpointMetadata | None = None
) -> tuple[TrainState[jax.Array], Base | None]:
    """Returns the state with the weights of its teacher, if the job has one, and what they are.

    `about` describes the checkpoint that the state was restored from. Raises what `initial` raises.
    """
    if program.job.distill is None:
        return state, None
    source, known = program.job.distill.teacher, about and about.teacher
    if about and known and about.job["distill"]["teacher"] == source:
        # `source` may be a run that has a newer step by now: use the recorded step.
        source = known.source
    params, found = teacher(source, program, known)
    return state._replace(teacher=params), found


def begin(
    program: TrainProgram, plan: Plan, restorer: Restorer | None, report: Report, events: Events
) -> InitialState:
    """Returns the state of the newest good checkpoint, or of step 0.

    Raises what `Restorer.newest` and `initial` raise.
    """
    start, about = _begin(program, plan, restorer, report, events)
    if program.job.distill is None:
        return start
    with events.phase("restore"):
        state, found = with_teacher(start.state, program, about)
    assert found
    report.print_line(f"learning from the teacher in {found.source}")
    return replace(start, state=state, teacher=found)


def _begin(
    program: TrainProgram, plan: Plan, restorer: Restorer | None, report: Report, events: Events
) -> tuple[InitialState, CheckpointMetadata | None]:
    """Returns the state without a teacher, and the metadata of its checkpoint, if it has one."""
    if restorer:
        with events.phase("restore"):
            restored = restorer.newest(program.shapes, program.shardings)
        if restored:
            _report(restored, program, plan, report)
            return _resumed(restored, program, events), restored.about
        report.print_if_resumed("no checkpoint was committed: starting from step 1")
    return _new(program, report, events), None


def _report(restored: Restored, program: TrainProgram, plan: Plan, report: Report) -> None:
    """Reports what was restored, from where, and what has changed since."""
    about = restored.about
    text = f"{moved(about, plan.world, plan.mesh)}{_from(restored)}"
    report.restored(about.step, about.examples, restored.source, text)
    for note in [*restored.notes, *program_changes(about, program.job)]:
        report.print_line(f"changed since the checkpoint: {note}")


def _resumed(restored: Restored, program: TrainProgram, events: Events) -> InitialState:
    """Returns the state of a checkpoint, with the frozen weights of its base."""
    about, state, base = restored.about, restored.state, None
    source = program.job.checkpoint and program.job.checkpoint.init_from
    if about.base and source:
        # `source` may be a run that has a newer step by now: use the recorded step.
        is_same = about.job["checkpoint"]["init_from"] == source
        folder = about.base.source if is_same else source
        with events.phase("restore"):
            model, base = initial(folder, program, about.base)
        state = state._replace(frozen_params=model)
    # A run that had no checks takes the state that it resumes with for a good one.
    last = about.step if about.checked_step is None else about.checked_step
    return InitialState(
        state,
        about.step,
        about.examples,
        about.loss,
        base,
        stamp=restored.stamp,
        recent=RecentSteps(about.recent),
        excluded=about.excluded,
        checks=HostChecks(last if program.job.integrity else None),
    )


def _new(program: TrainProgram, report: Report, events: Events) -> InitialState:
    """Returns the state of step 0, with new weights or with those in `init_from`."""
    checks = HostChecks(0 if program.job.integrity else None)
    source = program.job.checkpoint and program.job.checkpoint.init_from
    if source is None:
        return InitialState(program.initial_state(), checks=checks)
    with events.phase("restore"):
        params, base = initial(source, program)
    if program.job.lora:
        report.print_line(f"training adapters on the frozen weights from {base.source}")
        return InitialState(program.fresh_state(params), base=base, checks=checks)
    report.print_line(
        f"starting from the weights in {source}, with a new optimizer state and data order"
    )
    return InitialState(program.fresh_state(params), checks=checks)


def _from(restored: Restored) -> str:
    """Returns where an in-memory checkpoint was, and what it saves; "" for one in storage."""
    if restored.source == "storage":
        return ""
    where = "memory" if restored.source == "memory" else "the memory of neighbors"
    if restored.stored_step is None:
        return f", from {where}: storage has no checkpoint yet"
    saved = restored.about.step - restored.stored_step
    return f", from {where}: {saved} steps after the newest checkpoint in storage"
