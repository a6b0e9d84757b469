"""The clock of a rehearsal: time passes only when something waits, from one event to the next."""

import heapq
import math
from collections.abc import Callable
from itertools import count

from launcher.controller.surroundings import POLL_INTERVAL_S

Happening = Callable[[], None]
"""What happens at a moment."""


class HorizonReachedError(Exception):
    """Raised when the time of a rehearsal is over."""


class VirtualClock:
    """A clock with things that will happen. Begins at 0 and ends at `horizon_s`."""

    def __init__(self, horizon_s: float) -> None:
        self.now_s = 0.0
        self._horizon_s = horizon_s
        self._coming: list[tuple[float, int, Happening]] = []
        self._order = count()

    def monotonic(self) -> float:
        return self.now_s

    def time(self) -> float:
        return self.now_s

    def at(self, time_s: float, happening: Happening) -> None:
        """Lets something happen at a time; things of one time happen in the order of the calls."""
        heapq.heappush(self._coming, (max(time_s, self.now_s), next(self._order), happening))

    def sleep(self, seconds: float) -> None:
        """Lets time pass, with all that happens in it. Raises HorizonReachedError."""
        end_s = self.now_s + seconds
        while self.pass_until(end_s):
            pass

    def pass_until(self, end_s: float) -> bool:
        """Lets time pass up to `end_s`, or up to the next thing that happens before.

        Returns whether something has happened. Raises HorizonReachedError.
        """
        coming_s = self._coming[0][0] if self._coming else math.inf
        if min(coming_s, end_s) >= self._horizon_s:
            self.now_s = max(self.now_s, self._horizon_s)
            raise HorizonReachedError
        if coming_s > end_s:
            self.now_s = max(self.now_s, end_s)
            return False
        self.now_s = coming_s
        heapq.heappop(self._coming)[2]()
        return True

    def wait_for_change(self, limit_s: float) -> None:
        """Lets time pass until the controller would see that something has happened."""
        began_s = self.now_s
        if self.pass_until(began_s + limit_s):
            polls = math.ceil((self.now_s - began_s) / POLL_INTERVAL_S)
            self.sleep(
                max(0.0, min(began_s + polls * POLL_INTERVAL_S, began_s + limit_s) - self.now_s)
            )
