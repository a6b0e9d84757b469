"""What happened in a run, each thing at its time by the driver's clock.

Hosts say when something happened by their own clocks, which may be an hour off; the driver notes
when it `received` that, which may be late. What counts is the host's time, moved by the smallest
lag that was seen.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Any, NamedTuple

FROM_LAUNCHER = ("opened", "state", "attempt_ended")
FROM_PROCESS_0 = ("phase", "step")
KEPT = ("event", "attempt", "name", "edge", "step", "data_wait_s")
"""Of what process 0 says: a long run has millions of steps."""
LATEST_S = 1e11
"""Numbers from here on are no times: the year 5138."""


class Moment(NamedTuple):
    time: float
    """Seconds since the epoch by the driver's clock, never before the moment before."""
    event: Mapping[str, Any]
    """Of the launcher, or a phase or step of process 0; empty: a host was heard of."""


class _Told(NamedTuple):
    event: Mapping[str, Any]
    time: float
    """By the host's clock."""
    received: float


def timeline(events: Iterable[Mapping[str, Any]]) -> Iterator[Moment]:
    """The moments of a run, from its events in the order in which they were written down.

    Before each event of the launcher stands the moment in which any host was last heard of.
    Events without a time are left out.
    """
    heard: _Heard | None = None
    for event in events:
        time = _driver_time(event)
        if time is None:
            continue
        if heard is None:
            heard = _Heard(time)
            yield Moment(time, {})
        now = max(time, heard.until)
        if event.get("event") in FROM_LAUNCHER:
            yield from heard.moments()
            yield Moment(now, event)
            heard = _Heard(now)
        else:
            heard.add(event, now)
    if heard is not None:
        yield from heard.moments()


class _Heard:
    """What hosts said between two events of the launcher."""

    def __init__(self, since: float) -> None:
        self._since = self.until = since
        self._told: list[_Told] = []

    def add(self, event: Mapping[str, Any], now: float) -> None:
        self.until = now
        if event.get("process", 0) == 0 and event.get("event") in FROM_PROCESS_0:
            time = as_time(event.get("time"))
            kept = {name: event[name] for name in KEPT if name in event}
            self._told.append(_Told(kept, now if time is None else time, now))

    def moments(self) -> Iterator[Moment]:
        """In the order of the pipe that they came through."""
        latest = self._since
        for told, offset in zip(self._told, self._offsets(), strict=True):
            latest = max(latest, min(told.time + offset, told.received))
            yield Moment(latest, told.event)
        if self.until > self._since:
            yield Moment(self.until, {})

    def _offsets(self) -> Iterator[float]:
        """Of the driver's clock to the host's: what came quickest before or after tells best.

        The larger of both, so that a clock that is set in between spoils neither side.
        """
        lags = [told.received - told.time for told in self._told]
        before = accumulate(lags, min)
        after = reversed(list(accumulate(reversed(lags), min)))
        return map(max, before, after)


def as_time(value: object) -> float | None:
    """Seconds since the epoch; None for what is no time."""
    return float(value) if isinstance(value, int | float) and 0 <= value < LATEST_S else None


def _driver_time(event: Mapping[str, Any]) -> float | None:
    """Without `received`, process 0's own clock is the best guess."""
    if "received" in event:
        return as_time(event["received"])
    of_launcher = event.get("event") in FROM_LAUNCHER
    return as_time(event.get("time")) if of_launcher or event.get("process", 0) == 0 else None
