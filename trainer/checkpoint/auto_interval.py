"""The interval between saves for `checkpoint.every_minutes: auto`, from measured saves. Pure.

Process 0 chooses it. Its requests to save reach all processes through the step, as do those of a
fixed number of minutes, so that all save the same step.
"""

from collections import deque
from collections.abc import Callable
from statistics import fmean

from trainer.contract.planning.save_interval import SaveInterval, SaveStatistics, choose

WARM_UP_STEPS = 2
"""First steps of an attempt whose times do not count: caches are cold."""
PLAIN_STEPS = 200
"""Latest steps, beside which nothing was written, that a step beside a save is compared with."""
SAVES = 8
"""Latest saves whose mean cost counts."""
CHANGE = 0.2
"""Relative change of the interval from which on it is reported again."""
REQUEST_STEPS = 2
"""Steps from a request to the save: the one that carries it, and the one that is then running."""


class AutoInterval:
    """Measures saves and chooses the interval between them. Times are seconds of one clock.

    A save costs the seconds for which it blocks the steps, and those by which the steps beside its
    writes are longer than others. The first save of an attempt compiles and allocates, whatever the
    interval is, so it counts only while no other save is known.
    """

    def __init__(
        self,
        known: SaveStatistics,
        hosts: int,
        now_s: float,
        report: Callable[[SaveInterval], None],
    ) -> None:
        """`known` is what the plan knows. `report` receives the interval, now and after changes."""
        self._known, self._hosts, self._began_s, self._report = known, hosts, now_s, report
        self._steps = self._saves = 0
        self._plain = deque[float](maxlen=PLAIN_STEPS)
        self._blocked = deque[float](maxlen=SAVES)
        self._slowed = deque[float](maxlen=SAVES)
        if known.is_measured:
            self._add(known.cost_s, 0.0)
        self._save_began_s: float | None = None
        """Time at which the save in progress began; None without one."""
        self._save_blocked_s = 0.0
        self._beside: list[float] = []
        """Times of the steps beside the save in progress."""
        self._write_s = 0.0
        self._reported_s = 0.0
        self.chosen: SaveInterval
        """The current interval, and what it follows from."""
        self._choose(now_s)

    @property
    def seconds(self) -> float:
        """The interval from the begin of a save to the begin of the next."""
        return self.chosen.seconds

    @property
    def request_s(self) -> float:
        """Seconds after the last save at which the next one is requested."""
        step_s = fmean(self._plain) if self._plain else 0.0
        return self.seconds - REQUEST_STEPS * step_s

    def stepped(self, step_time_s: float) -> None:
        """Takes the time of a step, without evaluation and saving."""
        self._steps += 1
        if self._save_began_s is not None:
            self._beside.append(step_time_s)
        elif self._steps > WARM_UP_STEPS:
            self._plain.append(step_time_s)

    def saved(self, began_s: float, blocked_s: float) -> None:
        """Takes the time at which a save began, and the seconds for which it blocked the steps."""
        self._save_began_s, self._save_blocked_s, self._beside = began_s, blocked_s, []
        self._choose(began_s)

    def ended(self, now_s: float, *, is_saved: bool) -> None:
        """Takes the end of the save in progress. One that failed says nothing about the cost."""
        began_s, self._save_began_s = self._save_began_s, None
        if began_s is None or not is_saved:
            return
        plain_s = fmean(self._plain) if self._plain else None
        slowed_s = 0.0 if plain_s is None else sum(self._beside) - plain_s * len(self._beside)
        self._write_s = now_s - began_s
        self._saves += 1
        if self._saves == 2 and not self._known.is_measured:
            self._blocked.clear()
            self._slowed.clear()
        if self._saves > 1 or not self._known.is_measured:
            self._add(self._save_blocked_s, slowed_s)
        self._choose(now_s)

    def _add(self, blocked_s: float, slowed_s: float) -> None:
        self._blocked.append(blocked_s)
        self._slowed.append(slowed_s)

    def _host_s(self, now_s: float) -> float:
        """Returns the seconds of hosts of the whole run until now."""
        return self._known.host_s + self._hosts * (now_s - self._began_s)

    def _choose(self, now_s: float) -> None:
        """Chooses the interval, and reports one that is not as reported before."""
        known = self._known.model_copy(update={"host_s": self._host_s(now_s)})
        if self._blocked:
            # Noise of step times has both signs, so it is added up before it is limited.
            cost_s = fmean(self._blocked) + max(0.0, fmean(self._slowed))
            known = known.model_copy(update={"cost_s": cost_s, "is_measured": True})
        self.chosen = choose(known, self._hosts, write_s=self._write_s)
        if abs(self.seconds - self._reported_s) > CHANGE * self._reported_s:
            self._reported_s = self.seconds
            self._report(self.chosen)
