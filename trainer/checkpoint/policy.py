"""The schedule of saves, and the interface through which the loop saves.

All processes make the same decision whether to save a step, from numbers that all of them have.
"""

import time
from typing import Protocol

import jax

from trainer.checkpoint.errors import SaveError
from trainer.checkpoint.facts import Progress
from trainer.checkpoint.saver import Saver
from trainer.contract.config.job import Checkpoint
from trainer.data.loader import BatchLoader
from trainer.distributed.stop_vote import StopRequest, StopSignal
from trainer.step.train_step import TrainState


class Schedule:
    """Schedules saves by steps, which every process counts, and by minutes on process 0's clock."""

    def __init__(
        self, policy: Checkpoint, last_step: int, stop: StopSignal, *, keeps_time: bool
    ) -> None:
        self._policy, self._last_step, self._stop = policy, last_step, stop
        self._keeps_time = keeps_time
        self._saved_at = time.monotonic()
        self._saved_step = 0
        self._agreed = (0, StopRequest.NOTHING)

    def request(self) -> StopRequest:
        """Returns this process's request for the step that it is about to run."""
        if self._stop.received:
            return StopRequest.STOP
        minutes = self._policy.every_minutes
        waited_s = time.monotonic() - self._saved_at
        due = self._keeps_time and minutes is not None and waited_s >= 60 * minutes
        return StopRequest.SAVE if due else StopRequest.NOTHING

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

    def __init__(self, schedule: Schedule, saver: Saver, loader: BatchLoader) -> None:
        self._schedule, self._saver, self._loader = schedule, saver, loader

    @property
    def stops(self) -> bool:
        return self._schedule.stops

    def request(self) -> StopRequest:
        return self._schedule.request()

    def agree(self, step: int, request: int) -> None:
        self._schedule.agree(step, request)

    def is_due(self, step: int) -> bool:
        return self._schedule.is_due(step)

    def save(
        self, step: int, state: TrainState[jax.Array], loss: float, eval_loss: float | None
    ) -> None:
        self._schedule.saved(step)
        self._saver.save(Progress(step, self._loader.examples(step), loss, eval_loss), state)

    @property
    def is_under_way(self) -> bool:
        return self._saver.is_under_way

    def settle(self) -> None:
        self._saver.poll(wait=True)

    def poll(self) -> None:
        self._saver.poll()

    def finish(self) -> None:
        error = self._saver.poll(wait=True)
        if error is not None:
            raise SaveError(f"the last checkpoint could not be saved: {error}")
