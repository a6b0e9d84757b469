"""Rejects conflicting settings of a job before anything is laid out: (key, message) pairs."""

from trainer.contract.config.errors import Problems
from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.config.optimizer import Optimizer
from trainer.contract.planning.custom_model_validation import custom_model_problems
from trainer.contract.planning.data_validation import data_problems
from trainer.contract.planning.model_validation import model_problems
from trainer.contract.planning.plan import World


def job_problems(job: Job, world: World) -> Problems:
    """Yields conflicts between the job's sections that do not depend on the mesh."""
    yield from custom_model_problems(job)
    if isinstance(job.model, Model):
        yield from model_problems(job.model, job.data.seq_len)
    yield from data_problems(job)
    yield from _schedule(job.optimizer, job.steps)
    yield from _profile(job, world)
    if job.integrity and (count := world.processes_per_host) > 1:
        yield (
            "integrity",
            "compares hosts with one process each, found processes_per_host: "
            f"{count} in the cluster file. Remove one of them",
        )


def _schedule(settings: Optimizer, steps: int) -> Problems:
    falling = settings.decay_steps
    if falling is None:
        return
    if settings.schedule != "wsd":
        yield (
            "optimizer.decay_steps",
            f"schedule '{settings.schedule}' does not use this key. Remove it, or set "
            "schedule: wsd",
        )
    if settings.warmup_steps + falling > steps:
        yield (
            "optimizer.decay_steps",
            f"{falling} plus {settings.warmup_steps} steps of warm-up exceed the run's {steps} "
            "steps",
        )


def _profile(job: Job, world: World) -> Problems:
    if job.profile is None:
        return
    last, most = job.profile.steps[1], max(job.profile.processes, default=0)
    if last > job.last_step:
        yield "profile.steps", f"the last step is {last}, but the run has {job.last_step} steps"
    if most >= world.processes:
        yield (
            "profile.processes",
            f"found {most}, but the processes of {world.hosts} hosts are 0 to "
            f"{world.processes - 1}",
        )
