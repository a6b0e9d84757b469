"""What happens between the steps of the loop: evaluation, samples, traces, reports."""

import gc
import math
import time
from typing import Self

import jax

from trainer.ahead.background import AheadOfTime
from trainer.checkpoint.facts import Progress
from trainer.checkpoint.initial_state import InitialState
from trainer.checkpoint.memory_interval import Interval
from trainer.checkpoint.memory_saver import MemorySaver
from trainer.contract.config.eval import Eval, Sample
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.data.loader import BatchLoader
from trainer.evaluation.evaluate import Evaluator, combined
from trainer.evaluation.generate import Sampler
from trainer.evaluation.tasks import TaskEvaluator
from trainer.loop import Callback, StepResult
from trainer.step.train_state import TrainState
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import EvalResult, Rates, Report
from trainer.telemetry.profiler import Profiler


class ReportCallback(Callback):
    """Reports every step with its rates, and every evaluation."""

    def __init__(self, job: Job, plan: Plan, loader: BatchLoader, report: Report) -> None:
        self._loader, self._report, self._rates = loader, report, Rates(job, plan)

    def on_step_end(self, result: StepResult) -> None:
        step, metrics = result.step, result.metrics
        if not math.isfinite(metrics.loss):  # a dropped update, which is reported as a spike
            return
        fields = {
            "loss": float(metrics.loss),
            "grad_norm": float(metrics.grad_norm),
            "learning_rate": float(metrics.learning_rate),
            **self._rates.of(self._loader.examples(step), result.step_time_s),
            "data_wait_s": result.data_wait_s,
            "epoch": self._loader.epoch(step),
            "examples": f"{int(metrics.examples):08x}",
        }
        if metrics.reward_margin is not None and metrics.reward_accuracy is not None:
            fields["reward_margin"] = float(metrics.reward_margin)
            fields["reward_accuracy"] = float(metrics.reward_accuracy)
        self._report.step(step, fields)

    def on_eval(self, step: int, result: EvalResult) -> None:
        self._report.evaluation(step, result)


class CollectionCallback(Callback):
    """Collects Python's garbage on all processes at the same step.

    By itself, each process collects at a moment of its own, and each time all others wait for it.
    What exists before the first step is never examined again: `gc.freeze`.
    """

    EVERY_STEPS = 50

    def __enter__(self) -> Self:
        gc.collect()
        gc.freeze()
        gc.disable()
        return self

    def __exit__(self, *_: object) -> None:
        gc.enable()
        gc.unfreeze()

    def before_step(self, step: int) -> None:
        if step % self.EVERY_STEPS == 0:
            gc.collect()


class ProfileCallback(Callback):
    """Traces the steps that the job names; writing the trace is not part of any step's time."""

    def __init__(self, profiler: Profiler, events: Events) -> None:
        self._profiler, self._events = profiler, events
        profiler.accept_requests()

    def before_step(self, step: int) -> None:
        self._profiler.before(step)

    def is_due(self, step: int) -> bool:
        return self._profiler.ends_with(step)

    def on_due(self, step: int, state: TrainState[jax.Array]) -> None:
        self.on_stop()

    def on_stop(self) -> None:
        if self._profiler.is_on:
            with self._events.phase("profile"):
                self._profiler.end()


class EvalCallback(Callback):
    """Computes the validation loss of every source, and the metrics of tasks."""

    def __init__(
        self,
        settings: Eval,
        last_step: int,
        loader: BatchLoader,
        evaluator: Evaluator,
        tasks: TaskEvaluator | None,
        events: Events,
    ) -> None:
        self._settings, self._last_step, self._loader = settings, last_step, loader
        self._evaluator, self._tasks, self._events = evaluator, tasks, events

    def is_due(self, step: int) -> bool:
        return step % self._settings.every_steps == 0 or step == self._last_step

    def on_due(self, step: int, state: TrainState[jax.Array]) -> EvalResult | None:
        begin = time.perf_counter()
        sources = self._loader.sources
        with self._events.phase("evaluate"):
            found = [
                self._evaluator.evaluate(
                    state.weights, self._loader.validation(self._settings.batches, number)
                )
                for number in range(len(sources))
            ]
            evaluation = combined(found, sources)
            tasks = self._tasks and self._tasks.evaluate(state.weights, self._loader)
        if not (evaluation or tasks):
            return None
        return EvalResult(evaluation, tasks, time.perf_counter() - begin)


class SampleCallback(Callback):
    """Generates text every few steps; the sample after the last step follows the loop."""

    def __init__(
        self, settings: Sample, last_step: int, sampler: Sampler, report: Report, events: Events
    ) -> None:
        self._every, self._last_step = settings.every_steps, last_step
        self._sampler, self._report, self._events = sampler, report, events

    def is_due(self, step: int) -> bool:
        return bool(self._every) and step % self._every == 0 and step < self._last_step

    def on_due(self, step: int, state: TrainState[jax.Array]) -> None:
        with self._events.phase("sample"):
            text = self._sampler.sample(state.weights)
        if text is not None:
            self._report.sampled(step, text)


class InMemoryCallback(Callback):
    """Saves the state in the memory of the hosts, at the interval of the job."""

    def __init__(
        self, saver: MemorySaver, job: Job, start: InitialState, loader: BatchLoader, events: Events
    ) -> None:
        assert job.checkpoint and job.checkpoint.in_memory_every_steps
        self._interval = Interval(job.checkpoint.in_memory_every_steps, start.step)
        self._recent, self._checks = start.recent, start.checks
        self._saver, self._loader, self._events = saver, loader, events
        self._last_step, self._loss = job.last_step, math.nan

    def before_step(self, step: int) -> None:
        if self.is_due(step):
            with self._events.doing("save"):
                self._saver.settle()

    def on_step_end(self, result: StepResult) -> None:
        if result.metrics.applied:
            self._loss = float(result.metrics.loss)

    def is_due(self, step: int) -> bool:
        # The last step is saved in storage.
        return step < self._last_step and self._interval.is_due(step)

    def on_due(self, step: int, state: TrainState[jax.Array]) -> None:
        began_s = time.perf_counter()
        with self._events.phase("save"):
            examples, recent = self._loader.examples(step), self._recent.saved
            progress = Progress(step, examples, self._loss, None, recent, self._checks.step)
            self._saver.save(progress, state)
            background_s = self._saver.background_s
            self._interval.saved(step, began_s, time.perf_counter(), background_s)


class AheadCallback(Callback):
    """Compiles for fewer hosts after the first save, because a shrink needs a checkpoint."""

    def __init__(self, ahead: AheadOfTime) -> None:
        self._ahead = ahead

    def on_save(self, step: int) -> None:
        self._ahead.start()
