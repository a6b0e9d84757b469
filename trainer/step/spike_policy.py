"""What follows a spike of the loss or the gradient norm: the job's `on_spike`."""

import math
from collections.abc import Callable

import jax
import numpy as np

from trainer.contract.protocol.events import SpikeAction, SpikeEvent
from trainer.step.spikes import Limits, NotFiniteError, RecentSteps, RewindError, SpikeError
from trainer.step.train_state import StepMetrics
from trainer.step.train_step import TrainProgram
from trainer.telemetry.metrics import Report

MOST_REWINDS = 10
"""Rewinds of a run after which a spike stops it: then the examples are not the cause."""


class SpikePolicy:
    """Judges every step. All processes judge alike, by numbers that all of them have."""

    def __init__(
        self,
        program: TrainProgram,
        recent: RecentSteps,
        report: Report,
        rewinds: int = 0,
        exclude: Callable[[int], None] = lambda step: None,
    ) -> None:
        """`rewinds` are those so far; `exclude` records that a step's examples are excluded."""
        self._program, self._recent, self._report = program, recent, report
        self._policy, self._rewinds, self.exclude = program.job.on_spike, rewinds, exclude

    def limits(self, step: int) -> jax.Array:
        """Returns the limits of a step's update, float32 (2,), before the step runs."""
        if self._policy != "skip":
            return self._program.no_limits
        return self._program.on_all_devices(np.array(self._recent.limits(step), np.float32))

    def judge(self, step: int, metrics: StepMetrics) -> None:
        """Reports a spike in the metrics of a finished step, which are on the host.

        Raises NotFiniteError, SpikeError or RewindError when the run must not go on.
        """
        loss, grad_norm = float(metrics.loss), float(metrics.grad_norm)
        limits = self._recent.limits(step)
        self._recent.add(step, loss, grad_norm)
        # What the devices have skipped is skipped, whatever the host computes.
        is_within = self._policy == "skip" or limits.are_kept(loss, grad_norm)
        if metrics.applied and is_within:
            return
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        action = self._action(is_finite)
        text = f"step {step}: {_described(loss, grad_norm, limits, is_finite)}"
        self._report.spike(_event(step, metrics, limits, action), f"{text}. {_meaning(action)}")
        if action == "rewound":
            raise RewindError(f"{text}. {_meaning(action)}", step)
        if action == "stopped" and not is_finite:
            raise NotFiniteError(f"{text}. The update was not applied")
        if action == "stopped":
            raise SpikeError(f"{text}. {self._reason()}")

    def _action(self, is_finite: bool) -> SpikeAction:
        if self._policy == "skip":
            return "skipped"
        if self._policy == "rewind" and self._rewinds < MOST_REWINDS:
            return "rewound"
        return "continued" if self._policy == "continue" and is_finite else "stopped"

    def _reason(self) -> str:
        if self._policy == "rewind":
            return f"The run has rewound {self._rewinds} times already"
        return "on_spike: stop ends the run"


def _described(loss: float, grad_norm: float, limits: Limits, is_finite: bool) -> str:
    if not is_finite:
        return f"loss {loss}, gradient norm {grad_norm}: not finite"
    return (
        f"loss {loss:.4f} (limit {limits.loss:.4f}), gradient norm {grad_norm:.4g} "
        f"(limit {limits.grad_norm:.4g}): a spike"
    )


def _meaning(action: SpikeAction) -> str:
    return {
        "continued": "Its update is kept",
        "skipped": "Its update is dropped",
        "rewound": "The run goes back to its newest checkpoint, without the examples of this step",
        "stopped": "The run stops",
    }[action]


def _event(step: int, metrics: StepMetrics, limits: Limits, action: SpikeAction) -> SpikeEvent:
    return SpikeEvent(
        step=step,
        loss=_finite(float(metrics.loss)),
        grad_norm=_finite(float(metrics.grad_norm)),
        loss_limit=_finite(limits.loss),
        grad_norm_limit=_finite(limits.grad_norm),
        action=action,
        examples=f"{int(metrics.examples):08x}",
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
