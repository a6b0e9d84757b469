"""The state that a run goes on from: a checkpoint's, one with given weights, or all new."""

import math
from dataclasses import dataclass

import jax

from trainer.checkpoint.restore import Restorer, moved
from trainer.checkpoint.weights import initial_params
from trainer.events import Events
from trainer.report import Report
from trainer.spec.plan import Plan
from trainer.train_step import State, Trainable


@dataclass(frozen=True)
class Start:
    """Where the loop begins."""

    state: State[jax.Array]
    step: int = 0
    """Steps done."""
    examples: int = 0
    """Examples trained on."""
    loss: float = math.nan
    """Of the last step done."""


def begin(
    trainable: Trainable, plan: Plan, restorer: Restorer | None, report: Report, events: Events
) -> Start:
    """The newest good checkpoint's state, or step 0.

    Raises what `Restorer.newest` and `initial_params` raise.
    """
    if restorer:
        with events.phase("restore"):
            restored = restorer.newest(trainable.shapes(), trainable.shardings)
        if restored:
            about = restored.about
            report.restored(about.step, about.examples, moved(about, plan.world, plan.mesh))
            for note in restored.notes:
                report.say(f"changed since then: {note}")
            return Start(restored.state, about.step, about.examples, about.loss)
        report.say_if_resumed("no checkpoint was committed before: starting from step 1")
    settings = trainable.job.checkpoint
    if settings and settings.init_from:
        params = initial_params(settings.init_from, trainable, plan)
        report.say(f"weights from {settings.init_from}; the optimizer and the data begin anew")
        return Start(trainable.fresh_state(params))
    return Start(trainable.initial_state())
