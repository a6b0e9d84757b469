"""What else a job could be on its cluster: other meshes, rematerialization and micro-batches.

None of it changes a number of the run but by rounding: the same examples in the same order, the
same global batch, the same update.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar, get_args

from trainer.spec.checks import divisors
from trainer.spec.job import Job
from trainer.spec.model import Model
from trainer.spec.plan import Plan
from trainer.spec.resolve import PlanError, resolve
from trainer.spec.rules import RARE_AXES

T = TypeVar("T")

REMAT_POLICIES: tuple[str, ...] = get_args(Model.model_fields["remat"].annotation)
"""What recomputes least first."""

Changes = dict[str, int | str]
"""Dotted keys of the job file with their new values."""


@dataclass(frozen=True)
class Alternative:
    """A job that computes the same, and its plan."""

    job: Job
    plan: Plan
    changes: Changes
    """What makes it of the job as it was asked for."""

    @property
    def overrides(self) -> tuple[str, ...]:
        """For the command line: `key=value`."""
        return tuple(f"{key}={value}" for key, value in self.changes.items())


def alternatives(job: Job, plan: Plan) -> list[Alternative]:
    """All that `resolve` accepts on the plan's world, the job as it is first. No two are alike."""
    return [
        alternative
        for mesh in _meshes(plan)
        for micro_batches in _own_first(divisors(job.data.global_batch), job.data.micro_batches)
        for alternative in _with_each_policy(job, plan, mesh, micro_batches)
    ]


def _with_each_policy(
    job: Job, plan: Plan, mesh: dict[str, int], micro_batches: int
) -> Iterator[Alternative]:
    """The plan does not depend on the policy."""
    changes = _mesh_changes(job, plan, mesh)
    if micro_batches != job.data.micro_batches:
        changes["data.micro_batches"] = micro_batches
    try:
        other = resolve(_changed(job, changes), plan.world, plan.corpus)
    except PlanError:
        return
    for remat in _own_first(REMAT_POLICIES, job.decoder.remat):
        own = {} if remat == job.decoder.remat else {"model.remat": remat}
        yield Alternative(_changed(job, changes | own), other, changes | own)


def _meshes(plan: Plan) -> Iterator[dict[str, int]]:
    """Ways to split the devices, the plan's own first.

    Of the others `data` goes over all slices, so that no parameter is gathered between them, and
    `tensor` stays inside a host of GPUs. Rare axes stay as they are.
    """
    yield plan.mesh
    world, rare = plan.world, math.prod(plan.mesh[axis] for axis in RARE_AXES)
    for tensor in divisors(world.devices):
        if world.platform == "gpu" and tensor > world.devices_per_host:
            continue
        rest, beside = divmod(world.devices // tensor, rare)
        for fsdp in divisors(rest) if not beside else ():
            mesh = {**plan.mesh, "data": rest // fsdp, "fsdp": fsdp, "tensor": tensor}
            if mesh["data"] % world.slices == 0 and mesh != plan.mesh:
                yield mesh


def _mesh_changes(job: Job, plan: Plan, mesh: dict[str, int]) -> Changes:
    """The axes that must be said anew; one of -1 takes what is left over by itself."""
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
