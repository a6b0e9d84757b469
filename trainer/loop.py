"""The training loop: each step runs while the results of the one before are read."""

import contextlib
import time
from collections.abc import Callable, Iterator

import jax

from trainer.checkpoint.errors import SaveError, StoppedError
from trainer.checkpoint.initial_state import InitialState
from trainer.checkpoint.policy import Saving
from trainer.contract.config.job import Job
from trainer.data.loader import BatchLoader
from trainer.data.packing import Batch
from trainer.distributed.stop_vote import StopVote
from trainer.evaluation.evaluate import Evaluator, combined
from trainer.evaluation.generate import Sampler
from trainer.evaluation.multiple_choice import MultipleChoiceEvaluator
from trainer.step.train_step import StepMetrics, TrainState
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import Rates, Report
from trainer.telemetry.profiler import Profiling

Step = Callable[[TrainState, Batch, jax.Array], tuple[TrainState, StepMetrics]]


class NotFiniteError(ArithmeticError):
    """A step's loss or gradient is not a finite number; its update was not applied."""


class Loop:
    """Runs steps up to `job.steps`, with evaluations and saves between them."""

    def __init__(
        self, job: Job, feed: BatchLoader, step: Step, wishes: StopVote, evaluator: Evaluator,
        chooser: MultipleChoiceEvaluator | None, sampler: Sampler | None, saving: Saving,
        rates: Rates, profiling: Profiling, report: Report, events: Events,
    ):  # fmt: skip
        self._job, self._feed, self._step, self._wishes = job, feed, step, wishes
        self._evaluator, self._chooser, self._sampler = evaluator, chooser, sampler
        self._saving, self._rates = saving, rates
        self._profiling, self._report, self._events = profiling, report, events
        self._completed_s = self._sending_s = 0.0

    def run(self, start: InitialState) -> tuple[TrainState, float]:
        """Runs all steps; returns the state after the last one, and its loss.

        Raises NotFiniteError; StoppedError when a stop was requested, after the save.
        """
        state, last = start.state, self._job.steps
        batches = self._feed.training(start.step + 1)
        loss, running = start.loss, None
        with self._events.phase("train"):
            batch, wait_s = self._next(batches)
            self._completed_s = time.perf_counter()
            for step in range(start.step + 1, last + 1):
                self._profiling.before(step)
                wishes = self._wishes.array(self._saving.wish())
                state, metrics = self._send(state, batch, wishes)
                if running:
                    loss = self._finish(*running)
                running = (step, metrics, wait_s)
                if step < last:
                    batch, wait_s = self._next(batches)
                evaluated, saved = self._is_evaluated(step), self._saving.is_due(step)
                sampled = self._is_sampled(step)
                stops = self._saving.stops and step < last
                if self._profiling.ends_with(step):
                    loss, running = self._finish(*running), None
                    self._end_profile()
                if running and (evaluated or sampled or saved):
                    # A state that is not finite must not be saved.
                    loss, running = self._finish(*running), None
                eval_loss = self._evaluate(step, state) if evaluated else None
                if sampled:
                    self._sample(step, state)
                if saved:
                    self._save(step, state, loss, eval_loss)
                if stops:
                    self._end_profile()
                    raise self._stopped(step)
                self._saving.poll()
            loss = self._finish(*running) if running else loss
        self._finish_saving()
        return state, loss

    def _next(self, batches: Iterator[Batch]) -> tuple[Batch, float]:
        """Returns a batch and the seconds spent waiting for it."""
        with self._events.doing("data"):
            return next(batches), self._feed.wait_s

    def _send(
        self, state: TrainState, batch: Batch, wishes: jax.Array
    ) -> tuple[TrainState, StepMetrics]:
        """Dispatches a step; on CPU devices, this waits until the previous step is done."""
        asked = time.perf_counter()
        sent = self._step(state, batch, wishes)
        self._sending_s += time.perf_counter() - asked
        return sent

    def _finish(self, step: int, metrics: StepMetrics, wait_s: float) -> float:
        """Waits for a step and reports it; its time starts when the previous step completed."""
        asked = time.perf_counter()
        values = jax.device_get(metrics)
        now = time.perf_counter()
        step_time_s = now - self._completed_s
        own_s = asked - self._completed_s - self._sending_s
        self._completed_s, self._sending_s = now, 0.0
        loss, grad_norm = float(values.loss), float(values.grad_norm)
        if not values.finite:
            self._keep_what_is_saved()
            raise NotFiniteError(
                f"step {step}: loss {loss}, gradient norm {grad_norm}: not finite. "
                "The update was not applied"
            )
        self._saving.agree(step, int(values.wish))
        self._events.at_step(step, step_time_s, own_s)
        fields = {
            "loss": loss,
            "grad_norm": grad_norm,
            "learning_rate": float(values.learning_rate),
            **self._rates.of(self._feed.examples(step), step_time_s),
            "data_wait_s": wait_s,
            "epoch": self._feed.epoch(step),
            "examples": f"{int(values.examples):08x}",
        }
        self._report.step(step, fields)
        return loss

    def _is_evaluated(self, step: int) -> bool:
        every = self._job.eval and self._job.eval.every_steps
        return bool(every) and (step % every == 0 or step == self._job.steps)

    def _evaluate(self, step: int, state: TrainState) -> float | None:
        assert self._job.eval
        begin = time.perf_counter()
        with self._events.phase("evaluate"):
            count, sources = self._job.eval.batches, self._feed.sources
            found = [
                self._evaluator.evaluate(state.weights, self._feed.held_out(count, source))
                for source in range(len(sources))
            ]
            evaluation = combined(found, sources)
            choices = self._chooser and self._chooser.evaluate(state.weights, self._feed)
        if evaluation or choices:
            self._report.evaluation(step, evaluation, time.perf_counter() - begin, choices)
        self._completed_s = time.perf_counter()
        return evaluation.eval_loss if evaluation else None

    def _is_sampled(self, step: int) -> bool:
        """Returns whether a sample follows `step`; the last step's sample follows the loop."""
        every = self._job.sample and self._job.sample.every_steps
        return bool(every) and step % every == 0 and step < self._job.steps

    def _sample(self, step: int, state: TrainState) -> None:
        assert self._sampler
        with self._events.phase("sample"):
            text = self._sampler.sample(state.weights)
        self._report.sampled(step, text)
        self._completed_s = time.perf_counter()

    def _save(self, step: int, state: TrainState, loss: float, eval_loss: float | None) -> None:
        if self._saving.is_under_way:
            with self._events.phase("commit"):
                self._saving.settle()
        with self._events.phase("save"):
            self._saving.save(step, state, loss, eval_loss)
        self._completed_s = time.perf_counter()

    def _end_profile(self) -> None:
        """Writes the profile; the time that this takes is not part of any step's time."""
        if not self._profiling.is_on:
            return
        with self._events.phase("profile"):
            self._profiling.end()
        self._completed_s = time.perf_counter()

    def _finish_saving(self) -> None:
        if self._job.checkpoint:
            with self._events.phase("commit"):
                self._saving.finish()

    def _keep_what_is_saved(self) -> None:
        """Waits for the save in progress, which is of an earlier step."""
        if self._saving.is_under_way:
            with self._events.phase("commit"), contextlib.suppress(SaveError):
                self._saving.settle()

    def _stopped(self, step: int) -> StoppedError:
        self._finish_saving()
        return StoppedError(f"stopped on request after step {step}, with a checkpoint")
