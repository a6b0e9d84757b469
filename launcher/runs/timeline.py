"""The events of a run, each at its time by the driver's clock.

Hosts report times by their own clocks, which may be off by an hour. The driver records when it
`received` an event, which may be late. The time used is the host's, shifted by the smallest lag
that was observed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from launcher.core.events import AttemptEndedEvent, CommandStartedEvent, StateEvent
from trainer.contract.protocol.events import Event, PhaseEvent, StepEvent

LauncherEvent = CommandStartedEvent | StateEvent | AttemptEndedEvent
LAUNCHER_EVENTS = (CommandStartedEvent, StateEvent, AttemptEndedEvent)
"""The same types for `isinstance`, which takes a tuple much faster than a union."""
MOST_REPORTS = 2000
"""Reports that are compared to find the offset of the host's clock: enough, and few to store."""
LATEST_S = 1e11
"""Numbers from here on are not times: the year 5138."""


class PhaseEdge(NamedTuple):
    """The begin or end of a phase of process 0."""

    attempt: int | None
    name: str
    begins: bool


class StepDone(NamedTuple):
    """A step of process 0; the other fields of its event are not kept in memory."""

    attempt: int | None
    number: int
    data_wait_s: float


class Moment(NamedTuple):
    """A time at which it is known what the run did."""

    time: float
    """Seconds since the epoch by the driver's clock, never before the previous moment."""
    event: LauncherEvent | PhaseEdge | StepDone | None
    """What happened; None when a host sent another event."""


class Report(NamedTuple):
    """An event that process 0 reported."""

    event: PhaseEdge | StepDone
    time: float
    """Time by the host's clock."""
    received: float


@dataclass
class Heard:
    """The events that hosts reported between two events of the launcher."""

    since: float
    until: float
    reports: list[Report] = field(default_factory=list)

    def add(self, event: Event, now: float) -> None:
        """Adds one event of a host."""
        self.until = now
        if not event.process and (kept := _kept(event)):
            time = as_time(event.time)
            self.reports.append(Report(kept, now if time is None else time, now))

    def moments(self) -> Iterator[Moment]:
        """Yields the moments in the order in which their events arrived."""
        latest = self.since
        for report, offset in zip(self.reports, self._offsets(), strict=True):
            latest = max(latest, min(report.time + offset, report.received))
            yield Moment(latest, report.event)
        if self.until > self.since:
            yield Moment(self.until, None)

    def _offsets(self) -> Iterator[float]:
        """Yields the offset from the host's clock to the driver's for each report.

        The smallest lag before or after a report is the best estimate. The larger of the two is
        used, so that a clock change in between spoils neither side.
        """
        lags = [report.received - report.time for report in self.reports]
        before = accumulate(lags, min)
        after = reversed(list(accumulate(reversed(lags), min)))
        return map(max, before, after)


@dataclass
class Timeline:
    """Converts a run's events, in the order in which they were written, to moments."""

    heard: Heard | None = None

    def add(self, event: Event) -> Iterator[Moment]:
        """Yields the moments that are certain now. Ignores an event without a time.

        Each event of the launcher follows the moment in which any host last sent an event.
        """
        time = driver_time(event)
        if time is None:
            return
        if self.heard is None:
            self.heard = Heard(time, time)
            yield Moment(time, None)
        now = max(time, self.heard.until)
        if isinstance(event, LAUNCHER_EVENTS):
            yield from self.rest()
            yield Moment(now, event)
            self.heard = Heard(now, now)
        else:
            self.heard.add(event, now)
            if len(self.heard.reports) >= MOST_REPORTS:
                yield from self.rest()
                self.heard = Heard(now, now)

    def rest(self) -> Iterator[Moment]:
        """Returns the moments since the last one that was yielded."""
        return self.heard.moments() if self.heard else iter(())


def as_time(value: object) -> float | None:
    """Returns a value as seconds since the epoch; None when it is not a time."""
    return float(value) if isinstance(value, int | float) and 0 <= value < LATEST_S else None


def driver_time(event: Event) -> float | None:
    """Returns the driver's time; without `received`, process 0's clock is the best estimate."""
    if event.received is not None:
        return as_time(event.received)
    is_known = isinstance(event, LAUNCHER_EVENTS) or not event.process
    return as_time(event.time) if is_known else None


def _kept(event: Event) -> PhaseEdge | StepDone | None:
    """Returns what the goodput needs of a phase or step; None for any other event."""
    match event:
        case StepEvent():
            return StepDone(event.attempt, event.step, as_time(event.data_wait_s) or 0.0)
        case PhaseEvent():
            return PhaseEdge(event.attempt, event.name, event.edge == "begin")
        case _:
            return None
