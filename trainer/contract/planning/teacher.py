"""The job and the plan of a teacher's forward pass, from those of the run that learns from it."""

from trainer.contract.config.job import Job
from trainer.contract.config.model import Model
from trainer.contract.planning.plan import Plan


def job_of_teacher(job: Job, model: Model) -> Job:
    """Returns the job with the teacher's model, on the same data."""
    return job.model_copy(update={"model": model, "distill": None})


def of_teacher(job: Job, plan: Plan) -> tuple[Job, Plan] | None:
    """Returns the job and the plan of the teacher; None without one."""
    teacher = plan.teacher
    if teacher is None:
        return None
    changes = {
        "parameters": teacher.parameters,
        "attention": teacher.attention,
        "moe": teacher.moe,
        "precision": None,
        "teacher": None,
    }
    return job_of_teacher(job, teacher.model), plan.model_copy(update=changes)
