"""The steps whose state is saved in memory: every N-th, or as often as costs little."""

import math
from typing import Literal

import jax

from trainer.distributed import consensus

SHARE = 0.01
"""Share of the time of steps that saves may take when their interval is `auto`."""
WARM_UP = (2, 4, 6, 8)
"""The first steps that are saved when the interval is `auto`. The last two are measured: the first
ones compile, and touch the memory of both slots."""


class Interval:
    """Decides which steps are saved; alike on all processes."""

    def __init__(self, wanted: int | Literal["auto"], first_step: int) -> None:
        """`first_step` is the number of steps done at the start of the attempt."""
        self._first, self._offset = first_step, 0
        self._every = None if wanted == "auto" else wanted
        self._before: tuple[int, float] | None = None
        """The last save, while the interval is not chosen, and when it ended."""

    def is_due(self, step: int) -> bool:
        """Returns whether the state after `step` is saved."""
        if self._every is None:
            return step - self._first in WARM_UP
        return (step - self._offset) % self._every == 0

    def saved(self, step: int, began_s: float, ended_s: float, background_s: float) -> None:
        """Takes the time of a save; chooses the interval after the last one of WARM_UP.

        `background_s`: seconds of the devices that the save before took while steps ran.
        """
        if self._every is not None:
            return
        if step - self._first == WARM_UP[-1] and self._before is not None:
            before, since_s = self._before
            step_s = (began_s - since_s) / (step - before)
            own = str(interval(ended_s - began_s + background_s, step_s))
            is_first = jax.process_index() == 0
            self._every = int(consensus.broadcast("memory/interval", own if is_first else None))
            self._offset = step
        self._before = step, ended_s


def interval(save_s: float, step_s: float) -> int:
    """Returns after how many steps a save of `save_s` takes at most SHARE of the time."""
    return max(1, math.ceil(save_s / (SHARE * max(step_s, 1e-6))))
