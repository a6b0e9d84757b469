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
SAVES = 50
"""Saves after which an earlier one counts less: enough that the noise of step times cancels out."""
CHANGE = 0.2
"""Relative change of the interval from which on it is news."""
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
        report: Callable[[SaveInterval, bool], None],
    ) -> None:
        """`known` is what the plan knows.

        `report` receives the interval now and after each save, and whether that is news.
        """
        self._known, self._hosts, self._began_s, self._report = known, hosts, now_s, report
        self._steps = self._saves = 0
        self._is_first_known = False
        """Whether the cost is that of the first save alone."""
        self._plain = deque[float](maxlen=PLAIN_STEPS)
        self._save_began_s: float | None = None
        """Time at which the save in progress began; None without one."""
        self._save_blocked_s = 0.0
        self._beside: list[float] = []
        """Times of the steps beside the save in progress."""
        self._write_s = 0.0
        self._last_news_s = 0.0
        self.chosen: SaveInterval
        """The current interval, and what it follows from."""
        self._choose(now_s)
        self._pass_on()

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
        if self._saves == 1 and not self._known.saves:
            self._is_first_known = True
            self._add(self._save_blocked_s, slowed_s, 1)
        elif self._saves > 1:
            saves = 1 if self._is_first_known else min(SAVES, self._known.saves + 1)
            self._is_first_known = False
            self._add(self._save_blocked_s, slowed_s, saves)
        self._choose(now_s)
        self._pass_on()

    def _add(self, blocked_s: float, slowed_s: float, saves: int) -> None:
        """Adds a save to the means, as the last one of `saves`."""
        known = self._known
        self._known = known.model_copy(
            update={
                "blocked_s": known.blocked_s + (blocked_s - known.blocked_s) / saves,
                "slowed_s": known.slowed_s + (slowed_s - known.slowed_s) / saves,
                "saves": saves,
            }
        )

    def _host_s(self, now_s: float) -> float:
        """Returns the seconds of hosts of the whole run until now."""
        return self._known.host_s + self._hosts * (now_s - self._began_s)

    def _choose(self, now_s: float) -> None:
        known = self._known.model_copy(update={"host_s": self._host_s(now_s)})
        self.chosen = choose(known, self._hosts, write_s=self._write_s)

    def _pass_on(self) -> None:
        is_news = abs(self.seconds - self._last_news_s) > CHANGE * self._last_news_s
        if is_news:
            self._last_news_s = self.seconds
        self._report(self.chosen, is_news)
