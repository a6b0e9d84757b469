"""The training loop: one step always under way while the one before is read."""

import math
import time
from collections.abc import Callable

import jax

from trainer.data.feed import Feed
from trainer.data.packing import Batch
from trainer.evaluate import Evaluation, Evaluator
from trainer.events import Events
from trainer.metrics import Rates
from trainer.report import Report
from trainer.spec.job import Job
from trainer.train_step import State, StepMetrics

Step = Callable[[State, Batch], tuple[State, StepMetrics]]


class NotFiniteError(ArithmeticError):
    """A step's loss or gradient is not a finite number; its update was not applied."""


class Loop:
    """Steps from 1 to `job.steps`, evaluations between them."""

    def __init__(
        self, job: Job, feed: Feed, step: Step, evaluator: Evaluator, rates: Rates,
        report: Report, events: Events,
    ):  # fmt: skip
        self._job, self._feed, self._step, self._evaluator = job, feed, step, evaluator
        self._rates, self._report, self._events = rates, report, events
        self._completed_s = 0.0

    def run(self, state: State) -> tuple[State, float]:
        """The state after the last step, and that step's loss. Raises NotFiniteError."""
        batches = self._feed.training(first_step=1)
        batch, wait_s = next(batches), self._feed.wait_s
        loss, running = math.nan, None
        self._completed_s = time.perf_counter()
        with self._events.phase("train"):
            for step in range(1, self._job.steps + 1):
                state, metrics = self._step(state, batch)
                if running:
                    loss = self._finish(*running)
                running = (step, metrics, wait_s)
                if step < self._job.steps:
                    batch, wait_s = next(batches), self._feed.wait_s
                if self._is_evaluated(step):
                    loss, running = self._finish(*running), None
                    self._evaluate(step, state)
            return state, self._finish(*running) if running else loss

    def _finish(self, step: int, metrics: StepMetrics, wait_s: float) -> float:
        """Waits for a step and reports it; its time runs from the completion of the one before."""
        values = jax.device_get(metrics)
        now = time.perf_counter()
        step_time_s, self._completed_s = now - self._completed_s, now
        loss, grad_norm = float(values.loss), float(values.grad_norm)
        if not values.finite:
            raise NotFiniteError(
                f"step {step}: loss {loss}, gradient norm {grad_norm}: not finite. "
                "The update was not applied"
            )
        self._events.at_step(step)
        fields = {
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": float(values.learning_rate),
            **self._rates.of(step, step_time_s),
            "data_wait_s": wait_s,
            "epoch": self._feed.epoch(step),
            "examples": f"{int(values.examples):08x}",
        }
        self._report.step(step, fields)
        return loss

    def _is_evaluated(self, step: int) -> bool:
        every = self._job.evaluate and self._job.evaluate.every_steps
        return bool(every) and (step % every == 0 or step == self._job.steps)

    def _evaluate(self, step: int, state: State) -> Evaluation | None:
        assert self._job.evaluate
        begin = time.perf_counter()
        with self._events.phase("evaluate"):
            batches = self._feed.held_out(self._job.evaluate.batches)
            evaluation = self._evaluator.evaluate(state.params, batches)
        if evaluation:
            self._report.evaluation(step, evaluation, time.perf_counter() - begin)
        self._completed_s = time.perf_counter()
        return evaluation
