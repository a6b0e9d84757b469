"""Which steps are saved: one decision for all processes, from numbers that all of them have."""

import time

from trainer.spec.job import Checkpoint
from trainer.stop import StopSignal, Wish


class Schedule:
    """Saves by steps, which every process counts, and by minutes, which process 0 wishes for."""

    def __init__(
        self, policy: Checkpoint, last_step: int, stop: StopSignal, *, keeps_time: bool
    ) -> None:
        self._policy, self._last_step, self._stop = policy, last_step, stop
        self._keeps_time = keeps_time
        self._saved_at = time.monotonic()
        self._saved_step = 0
        self._agreed = (0, Wish.NOTHING)

    def wish(self) -> Wish:
        """This process's, for the step that it is about to make."""
        if self._stop.received:
            return Wish.STOP
        minutes = self._policy.every_minutes
        waited_s = time.monotonic() - self._saved_at
        due = self._keeps_time and minutes is not None and waited_s >= 60 * minutes
        return Wish.SAVE if due else Wish.NOTHING

    def agree(self, step: int, wish: int) -> None:
        """The largest wish of all processes in `step`."""
        self._agreed = (step, Wish(wish))

    @property
    def stops(self) -> bool:
        return self._agreed[1] == Wish.STOP

    def is_due(self, step: int) -> bool:
        """Whether the state after `step` is saved."""
        every = self._policy.every_steps
        by_steps = step == self._last_step or (every is not None and step % every == 0)
        # A wish from before the last save has been granted by it.
        wished_in, wish = self._agreed
        return by_steps or self.stops or (wish == Wish.SAVE and wished_in > self._saved_step)

    def saved(self, step: int) -> None:
        """A save of `step` has begun."""
        self._saved_at, self._saved_step = time.monotonic(), step
