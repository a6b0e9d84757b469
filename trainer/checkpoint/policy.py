"""The schedule of saves, and the interface through which the loop saves.

All processes make the same decision whether to save a step, from numbers that all of them have.
"""

import time
from typing import Protocol

import jax

from trainer.checkpoint.auto_interval import AutoInterval
from trainer.checkpoint.errors import SaveError
from trainer.checkpoint.facts import Progress
from trainer.checkpoint.initial_state import InitialState
from trainer.checkpoint.saver import Saver
from trainer.contract.config.checkpoint import Checkpoint
from trainer.data.loader import BatchLoader
from trainer.distributed.stop_vote import StopRequest, StopSignal
from trainer.step.train_state import TrainState


class Schedule:
    """Schedules saves by steps, which every process counts, and by minutes on process 0's clock."""

    def __init__(
        self,
        policy: Checkpoint,
        last_step: int,
        stop: StopSignal,
        *,
        keeps_time: bool,
        auto: AutoInterval | None = None,
    ) -> None:
        """`auto` chooses the interval of `every_minutes: auto` on the process that keeps time."""
        self._policy, self._last_step, self._stop = policy, last_step, stop
        self._keeps_time, self._auto = keeps_time, auto
        self._saved_at = time.monotonic()
        self._saved_step = 0
        self._agreed = (0, StopRequest.NOTHING)

    def request(self) -> StopRequest:
        """Returns this process's request for the step that it is about to run."""
        if self._stop.received:
            return StopRequest.STOP
        after_s = self._request_s()
        waited_s = time.monotonic() - self._saved_at
        due = self._keeps_time and after_s is not None and waited_s >= after_s
        return StopRequest.SAVE if due else StopRequest.NOTHING

    def _request_s(self) -> float | None:
        """Returns the seconds after the last save at which the next one is requested."""
        minutes = self._policy.every_minutes
        if minutes == "auto":
            return self._auto.request_s if self._auto else None
        return None if minutes is None else 60 * minutes

    def agree(self, step: int, request: int) -> None:
        """Records the largest request of all processes in `step`."""
        self._agreed = (step, StopRequest(request))

    @property
    def stops(self) -> bool:
        return self._agreed[1] == StopRequest.STOP

    def is_due(self, step: int) -> bool:
        """Returns whether the state after `step` is saved."""
        every = self._policy.every_steps
        by_steps = step == self._last_step or (every is not None and step % every == 0)
        # The last save has already served any request made before it.
        requested_in, request = self._agreed
        is_requested = request == StopRequest.SAVE and requested_in > self._saved_step
        return by_steps or self.stops or is_requested

    def saved(self, step: int) -> None:
        """Records that a save of `step` has begun."""
        self._saved_at, self._saved_step = time.monotonic(), step


class Saving(Protocol):
    """The loop's interface to saving; all processes must make the same calls after a step."""

    @property
    def is_on(self) -> bool:
        """Whether the job has checkpoints."""
        ...

    @property
    def stops(self) -> bool:
        """Whether the run ends after the save that is due."""
        ...

    def request(self) -> StopRequest:
        """Returns this process's request for the step that it is about to run."""
        ...

    def agree(self, step: int, request: int) -> None:
        """Records the largest request of all processes in `step`."""
        ...

    def stepped(self, step_time_s: float) -> None:
        """Takes the time of a finished step, without evaluation and saving."""
        ...

    def is_due(self, step: int) -> bool: ...

    def save(
        self, step: int, state: TrainState[jax.Array], loss: float, eval_loss: float | None
    ) -> None: ...

    @property
    def is_under_way(self) -> bool:
        """Whether a save is in progress."""
        ...

    def settle(self) -> None:
        """Waits for the save in progress. Raises SaveError, StaleError."""
        ...

    def poll(self) -> None:
        """Checks the result of the last save. Raises SaveError, StaleError."""
        ...

    def finish(self) -> None:
        """Waits for the last save. Raises SaveError, StaleError: no later save can replace it."""
        ...


class NoSaving:
    """The Saving of a job with `checkpoint: null`, which does nothing."""

    is_on = stops = is_under_way = False

    def request(self) -> StopRequest:
        return StopRequest.NOTHING

    def agree(self, step: int, request: int) -> None: ...

    def stepped(self, step_time_s: float) -> None: ...

    def is_due(self, step: int) -> bool:
        return False

    def save(
        self, step: int, state: TrainState[jax.Array], loss: float, eval_loss: float | None
    ) -> None: ...

    def settle(self) -> None: ...

    def poll(self) -> None: ...

    def finish(self) -> None: ...


class ScheduledSaving:
    """A Saving that follows the job's `checkpoint` section."""

    is_on = True

    def __init__(
        self,
        schedule: Schedule,
        saver: Saver,
        loader: BatchLoader,
        start: InitialState,
        auto: AutoInterval | None = None,
    ) -> None:
        """`auto` measures the saves, on the process that chooses the interval."""
        self._schedule, self._saver, self._loader = schedule, saver, loader
        self._recent, self._checks = start.recent, start.checks
        self._auto = auto

    @property
    def stops(self) -> bool:
        return self._schedule.stops

    def request(self) -> StopRequest:
        return self._schedule.request()

    def agree(self, step: int, request: int) -> None:
        self._schedule.agree(step, request)

    def stepped(self, step_time_s: float) -> None:
        if self._auto:
            self._auto.stepped(step_time_s)

    def is_due(self, step: int) -> bool:
        return self._schedule.is_due(step)

    def save(
        self, step: int, state: TrainState[jax.Array], loss: float, eval_loss: float | None
    ) -> None:
        self._schedule.saved(step)
        began_s = time.monotonic()
        examples, recent = self._loader.examples(step), self._recent.saved
        self._saver.save(
            Progress(step, examples, loss, eval_loss, recent, self._checks.step), state
        )
        if self._auto:
            self._auto.saved(began_s, time.monotonic() - began_s)

    @property
    def is_under_way(self) -> bool:
        return self._saver.is_under_way

    def settle(self) -> None:
        self._poll(wait=True)

    def poll(self) -> None:
        self._poll(wait=False)

    def _poll(self, *, wait: bool) -> Exception | None:
        was_under_way = self.is_under_way
        error = self._saver.poll(wait=wait)
        if self._auto and was_under_way and not self.is_under_way:
            self._auto.ended(time.monotonic(), is_saved=error is None)
        return error

    def finish(self) -> None:
        error = self._poll(wait=True)
        if error is not None:
            raise SaveError(f"the last checkpoint could not be saved: {error}")
