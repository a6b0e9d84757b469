"""When a run saves, and that it does: the loop's side of checkpoints."""

from typing import Protocol

import jax

from trainer.checkpoint.errors import SaveError
from trainer.checkpoint.saver import Progress, Saver
from trainer.checkpoint.schedule import Schedule
from trainer.data.feed import Feed
from trainer.stop import Wish
from trainer.train_step import State


class Saving(Protocol):
    """What the loop asks; every process must ask the same after the same step."""

    @property
    def stops(self) -> bool:
        """Whether the run ends after the save that is due."""
        ...

    def wish(self) -> Wish:
        """This process's, for the step that it is about to make."""
        ...

    def agree(self, step: int, wish: int) -> None:
        """The largest wish of all processes in `step`."""
        ...

    def is_due(self, step: int) -> bool: ...

    def save(
        self, step: int, state: State[jax.Array], loss: float, eval_loss: float | None
    ) -> None: ...

    @property
    def is_under_way(self) -> bool:
        """Whether a save is being written."""
        ...

    def settle(self) -> None:
        """Wait for the save under way. Raises SaveError, StaleError."""
        ...

    def poll(self) -> None:
        """See what became of the last save. Raises SaveError, StaleError."""
        ...

    def finish(self) -> None:
        """Wait for the last save. Raises what went wrong with it: there is no next occasion."""
        ...


class NoSaving:
    """`checkpoint: null`."""

    stops = is_under_way = False

    def wish(self) -> Wish:
        return Wish.NOTHING

    def agree(self, step: int, wish: int) -> None: ...

    def is_due(self, step: int) -> bool:
        return False

    def save(
        self, step: int, state: State[jax.Array], loss: float, eval_loss: float | None
    ) -> None: ...

    def settle(self) -> None: ...

    def poll(self) -> None: ...

    def finish(self) -> None: ...


class ScheduledSaving:
    """By the job's `checkpoint` section."""

    def __init__(self, schedule: Schedule, saver: Saver, feed: Feed) -> None:
        self._schedule, self._saver, self._feed = schedule, saver, feed

    @property
    def stops(self) -> bool:
        return self._schedule.stops

    def wish(self) -> Wish:
        return self._schedule.wish()

    def agree(self, step: int, wish: int) -> None:
        self._schedule.agree(step, wish)

    def is_due(self, step: int) -> bool:
        return self._schedule.is_due(step)

    def save(
        self, step: int, state: State[jax.Array], loss: float, eval_loss: float | None
    ) -> None:
        self._schedule.saved(step)
        self._saver.save(Progress(step, self._feed.examples(step), loss, eval_loss), state)

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
