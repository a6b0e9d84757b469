"""What the trainer is asked about a launch: what the TPU compiler says of its step."""

from launcher.launch import Launch
from launcher.plan import TrainingLaunch
from launcher.trainer_call import NoAnswerError, TrainerCall
from trainer.spec.compiler import lacks_compiler

TIMEOUT_S = 1800.0


def compilation(launch: Launch, timeout_s: float = TIMEOUT_S) -> TrainerCall:
    """The TPU compiler at work on the launch's step; its answer: trainer.estimate.Verdict's fields.

    Raises NoAnswerError where there is no compiler for it.
    """
    training = of_training(launch)
    if lack := lacks_compiler(training.plan.world):
        raise NoAnswerError(lack)
    return TrainerCall("trainer.estimate", training.job, training.plan, timeout_s)


def of_training(launch: Launch) -> TrainingLaunch:
    """A launch that the trainer can be asked about. Raises NoAnswerError."""
    if not isinstance(launch, TrainingLaunch):
        raise NoAnswerError("what a command runs is not known")
    return launch
