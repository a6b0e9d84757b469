"""Ranks the alternatives of a job on its cluster: meshes, rematerialization, micro-batches.

All alternatives compute the same numbers up to rounding: they have the same examples in the same
order, the same global batch, and the same update.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar, get_args

from trainer.contract.config.job import Job
from trainer.contract.config.mesh import PipelineSchedule
from trainer.contract.config.model import REMATERIALIZING, Model
from trainer.contract.estimates.forecast import StepForecast, estimated
from trainer.contract.estimates.memory import Footprint, footprint
from trainer.contract.estimates.roofline import Bounds, bounds
from trainer.contract.planning import accelerators
from trainer.contract.planning.mesh_validation import divisors
from trainer.contract.planning.plan import Plan
from trainer.contract.planning.planner import PlanError, resolve

T = TypeVar("T")

REMAT_POLICIES: tuple[str, ...] = get_args(Model.model_fields["remat"].annotation)
"""Rematerialization policies, least recomputation first."""

Changes = dict[str, int | str]
"""Dotted keys of the job file with their new values."""


class Order(NamedTuple):
    """The order in which micro-batches pass through the stages of a pipeline."""

    schedule: PipelineSchedule
    rounds: int


GPIPE = Order("gpipe", 1)


@dataclass(frozen=True)
class Alternative:
    """A job that computes the same numbers, and its plan."""

    job: Job
    plan: Plan
    changes: Changes
    """Differences from the job as the user wrote it."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """The changes as `key=value` arguments of the command line."""
        return tuple(f"{key}={value}" for key, value in self.changes.items())


def alternatives(job: Job, plan: Plan) -> list[Alternative]:
    """Returns all distinct jobs that `resolve` accepts on the plan's world, the given job first."""
    return [
        alternative
        for mesh in _meshes(plan)
        for order in _orders(job, mesh)
        for grad_accum_steps in _own_first(
            divisors(job.data.global_batch), job.data.grad_accum_steps
        )
        for alternative in _with_each_policy(job, plan, mesh, order, grad_accum_steps)
    ]


def _with_each_policy(
    job: Job, plan: Plan, mesh: dict[str, int], order: Order, grad_accum_steps: int
) -> Iterator[Alternative]:
    """Yields one alternative per rematerialization policy, which the plan does not depend on."""
    changes = _mesh_changes(job, plan, mesh)
    if order.rounds != job.mesh.pipeline_rounds:
        changes["mesh.pipeline_rounds"] = order.rounds
    if order.schedule != job.mesh.pipeline_schedule:
        changes["mesh.pipeline_schedule"] = order.schedule
    if grad_accum_steps != job.data.grad_accum_steps:
        changes["data.grad_accum_steps"] = grad_accum_steps
    policies = REMATERIALIZING if order != GPIPE or job.decoder.offload else REMAT_POLICIES
    first = job.decoder.remat if job.decoder.remat in policies else policies[0]
    try:
        changed = _changed(job, changes | {"model.remat": first})
        other = resolve(changed, plan.world, plan.corpus, read_teacher=plan.teacher_model)
    except PlanError:
        return
    for remat in _own_first(policies, first):
        own = {} if remat == job.decoder.remat else {"model.remat": remat}
        yield Alternative(_changed(job, changes | own), other, changes | own)


def _meshes(plan: Plan) -> Iterator[dict[str, int]]:
    """Yields the meshes to try, the plan's own first.

    In the other meshes `pipeline` and `data` span all slices, so no parameter is gathered between
    slices, and `tensor` stays inside a host of GPUs. `pipeline` has its own size or has a stage for
    one or more slices. The other rare axes do not change.
    """
    yield plan.mesh
    world, rare = plan.world, plan.mesh["expert"] * plan.mesh["context"]
    for pipeline in sorted({plan.mesh["pipeline"], *divisors(world.slices)}):
        slices = world.slices // math.gcd(world.slices, pipeline)
        for tensor in divisors(world.devices):
            if world.platform == "gpu" and tensor > world.devices_per_host:
                continue
            rest, beside = divmod(world.devices, tensor * rare * pipeline)
            for fsdp in divisors(rest) if not beside else ():
                sizes = {"pipeline": pipeline, "data": rest // fsdp, "fsdp": fsdp}
                mesh = {**plan.mesh, **sizes, "tensor": tensor}
                if mesh["data"] % slices == 0 and mesh != plan.mesh:
                    yield mesh


def _orders(job: Job, mesh: dict[str, int]) -> list[Order]:
    """Returns the orders of a pipeline to try, the job's own first."""
    stages, own = mesh["pipeline"], Order(job.mesh.pipeline_schedule, job.mesh.pipeline_rounds)
    if stages == 1:
        return [GPIPE]
    groups = job.decoder.layers // job.decoder.layer_period
    in_rounds = [Order("gpipe", rounds) for rounds in divisors(max(groups // stages, 1))]
    return _own_first([*in_rounds, Order("1f1b", 1)], own)


def _mesh_changes(job: Job, plan: Plan, mesh: dict[str, int]) -> Changes:
    """Returns the axis sizes to override; an axis of -1 adapts without an override."""
    return {
        f"mesh.{axis}": size
        for axis, size in mesh.items()
        if size != plan.mesh[axis] and getattr(job.mesh, axis) != -1
    }


def _changed(job: Job, changes: Changes) -> Job:
    for key, value in changes.items():
        section, name = key.split(".")
        changed = getattr(job, section).model_copy(update={name: value})
        job = job.model_copy(update={section: changed})
    return job


def _own_first(values: Sequence[T], own: T) -> list[T]:
    return [own, *(value for value in values if value != own)]


@dataclass(frozen=True)
class Candidate:
    """An alternative with its estimates."""

    alternative: Alternative
    bounds: Bounds
    forecast: StepForecast
    footprint: Footprint

    @property
    def order(self) -> tuple[float, ...]:
        """Sort key, smallest for the likely fastest: the step time by the calibrated estimate.

        Fewer changes win between times equal to three significant figures.
        """
        return float(f"{self.forecast.step_s:.3g}"), len(self.alternative.changes)


@dataclass(frozen=True)
class Ranking:
    """All legal alternatives of a job on its cluster."""

    hbm_bytes: int
    """HBM of a device."""
    own: Candidate
    """The job as it is."""
    all_by_speed: list[Candidate]
    """All candidates, the likely fastest first, whether they fit or not."""

    @property
    def fitting(self) -> list[Candidate]:
        """Candidates that fit by estimate, the likely fastest first."""
        return [one for one in self.all_by_speed if one.footprint.total <= self.hbm_bytes]

    @property
    def least(self) -> Candidate:
        """The candidate with the least memory by estimate."""
        return min(self.all_by_speed, key=lambda one: one.footprint.total)

    @property
    def doubtful(self) -> list[Candidate]:
        """Candidates that exceed HBM by estimate but may fit, the smallest first."""
        size = self.hbm_bytes
        found = [
            one for one in self.all_by_speed if one.footprint.certain <= size < one.footprint.total
        ]
        return sorted(found, key=lambda one: one.footprint.total)


def rank(job: Job, plan: Plan) -> Ranking | None:
    """Returns all alternatives, ranked, or None when the device specifications are unknown."""
    world = plan.world
    hbm_bytes = None if world.on_cpu else accelerators.parse(world.accelerator).hbm_bytes
    if hbm_bytes is None or bounds(job, plan) is None:
        return None
    every = [_candidate(alternative) for alternative in alternatives(job, plan)]
    return Ranking(hbm_bytes, every[0], sorted(every, key=lambda one: one.order))


def _candidate(alternative: Alternative) -> Candidate:
    job, plan = alternative.job, alternative.plan
    best, likely = bounds(job, plan), estimated(job, plan)
    assert best and likely, "the chip's specifications are known"
    return Candidate(alternative, best, likely, footprint(job, plan))
