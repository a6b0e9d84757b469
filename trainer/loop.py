"""The training loop: each step runs while the results of the one before are read."""

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import jax

from trainer.checkpoint.errors import SaveError, StoppedError
from trainer.checkpoint.initial_state import InitialState
from trainer.checkpoint.policy import Saving
from trainer.data.loader import BatchLoader
from trainer.data.packing import Batch
from trainer.distributed.stop_vote import StopVote
from trainer.integrity.errors import UndecidedError, WrongHostError
from trainer.integrity.host_check import HostCheck
from trainer.step.spike_policy import SpikePolicy
from trainer.step.spikes import RewindError
from trainer.step.train_state import StepMetrics, TrainState
from trainer.telemetry.events import Events
from trainer.telemetry.metrics import EvalResult

Step = Callable[[TrainState, Batch, jax.Array, jax.Array], tuple[TrainState, StepMetrics]]


@dataclass(frozen=True)
class Training:
    """What the loop runs: the compiled step, its batches, the saves, and what spikes cause."""

    last_step: int
    step: Step
    loader: BatchLoader
    stop_vote: StopVote
    saving: Saving
    spikes: SpikePolicy
    hosts: HostCheck | None = None
    """Compares the hosts before some updates."""


@dataclass(frozen=True)
class StepResult:
    """The numbers of a finished step, on the host."""

    step: int
    metrics: StepMetrics
    step_time_s: float
    """Seconds since the previous step completed, without evaluation, saving and profiling."""
    data_wait_s: float
    """Seconds that the loop waited for the step's batch."""


class Callback:
    """Watches the loop. The base class does nothing; all processes need the same callbacks."""

    def before_step(self, step: int) -> None:
        """Called before `step` is dispatched."""

    def on_step_end(self, result: StepResult) -> None:
        """Called when the results of a step have been read, while the next step runs."""

    def is_due(self, step: int) -> bool:
        """Returns whether `on_due` follows `step`; the loop then first finishes that step."""
        return False

    def on_due(self, step: int, state: TrainState[jax.Array]) -> EvalResult | None:
        """Called with the state after `step`. Returns a result when it evaluated the state."""

    def on_eval(self, step: int, result: EvalResult) -> None:
        """Called with what a callback returned from `on_due`."""

    def on_save(self, step: int) -> None:
        """Called when a save of the state after `step` has begun."""

    def on_stop(self) -> None:
        """Called when a stop request ends the loop early, after the save."""


class Loop:
    """Runs steps up to the last one, with callbacks and saves between them."""

    def __init__(self, training: Training, callbacks: Sequence[Callback], events: Events):
        self._training, self._callbacks, self._events = training, callbacks, events
        self._saving, self._last_step = training.saving, training.last_step
        self._running: tuple[int, StepMetrics, float] | None = None
        """A step that the devices may still compute: number, metrics, seconds of data wait."""
        self._loss = math.nan
        self._completed_s = self._dispatch_s = 0.0

    def run(self, start: InitialState) -> tuple[TrainState, float]:
        """Runs all steps; returns the state after the last one, and its loss.

        Raises NotFiniteError, SpikeError, RewindError, WrongHostError and UndecidedError;
        StoppedError when a stop was requested, after the save.
        """
        state, self._loss = start.state, start.loss
        batches = self._training.loader.training(start.step + 1)
        with self._events.phase("train"):
            batch, wait_s = self._next(batches)
            self._completed_s = time.perf_counter()
            for step in range(start.step + 1, self._last_step + 1):
                state, metrics = self._dispatch(step, state, batch)
                self._finish()
                self._running = (step, metrics, wait_s)
                if step < self._last_step:
                    batch, wait_s = self._next(batches)
                self._after_step(step, state)
            self._finish()
        self._finish_saving()
        return state, self._loss

    def _next(self, batches: Iterator[Batch]) -> tuple[Batch, float]:
        """Returns a batch and the seconds spent waiting for it."""
        with self._events.doing("data"):
            return next(batches), self._training.loader.wait_s

    def _dispatch(
        self, step: int, state: TrainState, batch: Batch
    ) -> tuple[TrainState, StepMetrics]:
        """Dispatches a step; on CPU devices, this waits until the previous step is done."""
        if self._training.hosts and self._training.hosts.is_due(step):
            self._check_hosts(self._training.hosts, step, state, batch)
        for callback in self._callbacks:
            callback.before_step(step)
        requests = self._training.stop_vote.array(self._saving.request())
        before_s = time.perf_counter()
        limits = self._training.spikes.limits(step)
        state, metrics = self._training.step(state, batch, requests, limits)
        for metric in jax.tree.leaves(metrics):
            # The copy follows the step at once, not only when the loop asks for it.
            metric.copy_to_host_async()
        self._dispatch_s += time.perf_counter() - before_s
        return state, metrics

    def _check_hosts(
        self, hosts: HostCheck, step: int, state: TrainState, batch: Batch
    ) -> None:  # fmt: skip
        self._finish()
        try:
            with self._events.phase("check"):
                hosts.check(step, state, batch)
        except (WrongHostError, UndecidedError):
            self._keep_what_is_saved()
            raise
        self._completed_s = time.perf_counter()

    def _finish(self) -> None:
        """Waits for the running step and reports it; its time starts when the last one completed.

        Does nothing when no step runs.
        """
        if self._running is None:
            return
        (step, running, wait_s), self._running = self._running, None
        asked_s = time.perf_counter()
        metrics = jax.device_get(running)
        now_s = time.perf_counter()
        step_time_s = now_s - self._completed_s
        host_time_s = asked_s - self._completed_s - self._dispatch_s
        self._completed_s, self._dispatch_s = now_s, 0.0
        self._judge(step, metrics)
        if metrics.applied:
            self._loss = float(metrics.loss)
        self._saving.agree(step, int(metrics.request))
        self._saving.stepped(step_time_s)
        self._events.at_step(step, step_time_s, host_time_s)
        for callback in self._callbacks:
            callback.on_step_end(StepResult(step, metrics, step_time_s, wait_s))

    def _judge(self, step: int, metrics: StepMetrics) -> None:
        try:
            self._training.spikes.judge(step, metrics)
        except (ArithmeticError, RewindError):
            self._keep_what_is_saved()
            raise

    def _after_step(self, step: int, state: TrainState) -> None:
        """Calls the callbacks that are due after `step`, and saves. Raises StoppedError."""
        due = [callback for callback in self._callbacks if callback.is_due(step)]
        is_saved, stops = self._saving.is_due(step), self._saving.stops and step < self._last_step
        if due or is_saved:
            # A state that is not finite must not be saved.
            self._finish()
        eval_loss = self._call(due, step, state)
        if is_saved:
            self._save(step, state, eval_loss)
        if stops:
            raise self._stopped(step)
        self._saving.poll()

    def _call(self, due: Sequence[Callback], step: int, state: TrainState) -> float | None:
        """Calls the callbacks that are due; returns the validation loss if one evaluated it."""
        eval_loss = None
        for callback in due:
            result = callback.on_due(step, state)
            if result:
                eval_loss = result.eval_loss
                for other in self._callbacks:
                    other.on_eval(step, result)
            self._completed_s = time.perf_counter()
        return eval_loss

    def _save(self, step: int, state: TrainState, eval_loss: float | None) -> None:
        if self._saving.is_under_way:
            with self._events.phase("commit"):
                self._saving.settle()
        with self._events.phase("save"):
            self._saving.save(step, state, self._loss, eval_loss)
        for callback in self._callbacks:
            callback.on_save(step)
        self._completed_s = time.perf_counter()

    def _finish_saving(self) -> None:
        if self._saving.is_on:
            with self._events.phase("commit"):
                self._saving.finish()

    def _keep_what_is_saved(self) -> None:
        """Waits for the save in progress, which is of an earlier step."""
        if self._saving.is_under_way:
            with self._events.phase("commit"), contextlib.suppress(SaveError):
                self._saving.settle()

    def _stopped(self, step: int) -> StoppedError:
        for callback in self._callbacks:
            callback.on_stop()
        self._finish_saving()
        return StoppedError(f"stopped on request after step {step}, with a checkpoint")
