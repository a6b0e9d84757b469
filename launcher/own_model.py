"""The parameters of a model of the user's own: a child process builds it, without numbers."""

from collections.abc import Sequence

from launcher.trainer_call import NoAnswerError, TrainerCall
from trainer.spec.job import Job
from trainer.spec.own_model import KEY
from trainer.spec.plan import ArrayPlan
from trainer.spec.resolve import PlanError
from trainer.spec.shapes import Parameter

TIMEOUT_S = 120.0


def parameters(job: Job) -> list[Parameter]:
    """Their code runs in the child alone. Raises PlanError with what is wrong with it."""
    try:
        with TrainerCall("trainer.describe", job, None, TIMEOUT_S) as call:
            found = call.answer()
    except NoAnswerError as error:
        raise PlanError([(KEY, f"importing and building it: {error}")]) from None
    if "problems" in found:
        raise PlanError([(key, message) for key, message in found["problems"]])
    return [
        Parameter(one["name"], tuple(one["shape"]), tuple(one["axes"]))
        for one in found["parameters"]
    ]


def planned(arrays: Sequence[ArrayPlan]) -> list[Parameter]:
    """Those of another plan for the same job."""
    return [Parameter(one.name, one.shape, one.axes) for one in arrays]
