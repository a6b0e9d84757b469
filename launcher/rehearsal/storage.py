"""The checkpoints of a rehearsed run, and the steps after which it saves. Pure."""

import math
from dataclasses import dataclass

from trainer.contract.config.checkpoint import Checkpoint


@dataclass
class Storage:
    """What outlives an attempt."""

    committed: int = 0
    """Step of the newest checkpoint; 0 before the first."""


@dataclass
class SaveSchedule:
    """Finds the next step that is saved, as `trainer.checkpoint.policy.Schedule` decides."""

    policy: Checkpoint | None
    last_step: int
    saved_at_s: float
    """Time of the last save or, before the first one, of the begin of the attempt."""

    def next_save(self, step: int, now_s: float, step_s: float) -> int:
        """Returns the next step after `step` that is saved; the last one always is.

        A save by minutes follows the first step that begins when the minutes are over.
        """
        if self.policy is None:
            return self.last_step
        found = self.last_step
        if every := self.policy.every_steps:
            found = min(found, (step // every + 1) * every)
        if self.policy.every_minutes and self.policy.every_minutes != "auto":
            minutes = self.policy.every_minutes
            left_s = self.saved_at_s + 60.0 * minutes - now_s
            found = min(found, step + 1 + max(0, math.ceil(left_s / step_s - 1e-9)))
        return found
