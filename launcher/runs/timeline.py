"""What happened in a run, each thing at its time by the driver's clock.

Hosts say when something happened by their own clocks, which may be an hour off; the driver notes
when it `received` that, which may be late. What counts is the host's time, moved by the smallest
lag that was seen.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

FROM_LAUNCHER = ("opened", "state", "attempt_ended")
FROM_PROCESS_0 = ("phase", "step")
KEPT = ("event", "attempt", "name", "edge", "step", "data_wait_s")
"""Of what process 0 says: a long run has millions of steps."""
MOST_REPORTS = 2000
"""So many are compared to find the offset of the host's clock: enough, and few to hold."""
LATEST_S = 1e11
"""Numbers from here on are no times: the year 5138."""


class Moment(NamedTuple):
    time: float
    """Seconds since the epoch by the driver's clock, never before the moment before."""
    event: Mapping[str, Any]
    """Of the launcher, or a phase or step of process 0; empty: a host was heard of."""


class Report(NamedTuple):
    """What process 0 reported."""

    event: dict[str, Any]
    time: float
    """By the host's clock."""
    received: float


@dataclass
class Heard:
    """What hosts reported between two events of the launcher."""

    since: float
    until: float
    reports: list[Report] = field(default_factory=list)

    def add(self, event: Mapping[str, Any], now: float) -> None:
        """Take in one event of a host."""
        self.until = now
        if event.get("process", 0) == 0 and event.get("event") in FROM_PROCESS_0:
            time = as_time(event.get("time"))
            kept = {name: event[name] for name in KEPT if name in event}
            self.reports.append(Report(kept, now if time is None else time, now))

    def moments(self) -> Iterator[Moment]:
        """In the order of the pipe that they came through."""
        latest = self.since
        for report, offset in zip(self.reports, self._offsets(), strict=True):
            latest = max(latest, min(report.time + offset, report.received))
            yield Moment(latest, report.event)
        if self.until > self.since:
            yield Moment(self.until, {})

    def _offsets(self) -> Iterator[float]:
        """Of the driver's clock to the host's: what came quickest before or after tells best.

        The larger of both, so that a clock that is set in between spoils neither side.
        """
        lags = [report.received - report.time for report in self.reports]
        before = accumulate(lags, min)
        after = reversed(list(accumulate(reversed(lags), min)))
        return map(max, before, after)


@dataclass
class Timeline:
    """Takes a run's events in the order in which they were written, and hands out its moments."""

    heard: Heard | None = None

    def add(self, event: Mapping[str, Any]) -> Iterator[Moment]:
        """The moments that are certain now. An event without a time is left out.

        Before each event of the launcher is the moment in which any host was last heard of.
        """
        time = _driver_time(event)
        if time is None:
            return
        if self.heard is None:
            self.heard = Heard(time, time)
            yield Moment(time, {})
        now = max(time, self.heard.until)
        if event.get("event") in FROM_LAUNCHER:
            yield from self.rest()
            yield Moment(now, event)
            self.heard = Heard(now, now)
        else:
            self.heard.add(event, now)
            if len(self.heard.reports) >= MOST_REPORTS:
                yield from self.rest()
                self.heard = Heard(now, now)

    def rest(self) -> Iterator[Moment]:
        """The moments since the last one that was handed out."""
        return self.heard.moments() if self.heard else iter(())


def as_time(value: object) -> float | None:
    """Seconds since the epoch; None for what is no time."""
    return float(value) if isinstance(value, int | float) and 0 <= value < LATEST_S else None


def _driver_time(event: Mapping[str, Any]) -> float | None:
    """Without `received`, process 0's own clock is the best guess."""
    if "received" in event:
        return as_time(event["received"])
    of_launcher = event.get("event") in FROM_LAUNCHER
    return as_time(event.get("time")) if of_launcher or event.get("process", 0) == 0 else None
