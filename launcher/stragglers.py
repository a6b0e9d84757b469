"""Which hosts of a gang are slow, by what they measure of themselves. Pure: no clock.

All hosts make a step in the same time, because they wait for each other in it. Two measures in the
heartbeats tell them apart: a host's own time in a step, in which it did not wait for the devices
(reading data, sending work to the devices), and the time that a fixed small piece of work took its
processors.
"""

import statistics
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from launcher.outcome import host_name

FACTOR, RECOVERED_FACTOR = 2.0, 1.5
LASTING_S = 6.0
"""A host is slow once it has been so for this long, by the medians of its last HEARTBEATS."""
HEARTBEATS = 5
OWN_SHARE = 0.5
"""Of the step: less own time than this is hidden behind the work of the devices."""
LEAST_OWN_S, LEAST_WORK_S = 0.02, 0.01
"""Less than this is noise."""


@dataclass(frozen=True)
class Straggler:
    """A slow host; in words by `str`."""

    process: int
    factor: float
    """Its measure against the median of the others'."""
    measure: str
    """ "own_s" or "work_s"."""
    value_s: float

    def __str__(self) -> str:
        what = {
            "own_s": "of its own in each step",
            "work_s": "for a fixed small piece of work of its processors",
        }[self.measure]
        return (
            f"{host_name(self.process)} is slow: it takes {1000 * self.value_s:.0f} ms {what}, "
            f"{self.factor:.1f} times as long as the others"
        )


@dataclass(frozen=True)
class _Beat:
    own_s: float
    step_time_s: float
    work_s: float

    @classmethod
    def of(cls, event: Mapping[str, Any]) -> "_Beat | None":
        """None where the program measures nothing, or made no step since its last heartbeat."""
        values = [event.get(name) for name in ("own_s", "step_time_s", "work_s")]
        numbers = [
            float(v) for v in values if isinstance(v, (int, float)) and 0 <= v < float("inf")
        ]
        return cls(*numbers) if len(numbers) == len(values) else None


class Paces:
    """The last heartbeats of every host in its loop, compared."""

    def __init__(self) -> None:
        self._beats: dict[int, deque[_Beat]] = {}
        self._slow_since: dict[int, float] = {}
        self._named: set[int] = set()

    def on_heartbeat(self, process: int, event: Mapping[str, Any]) -> None:
        beat = _Beat.of(event)
        if beat:
            self._beats.setdefault(process, deque(maxlen=HEARTBEATS)).append(beat)

    def on_end(self, process: int) -> None:
        self._beats.pop(process, None)

    def named(self, now_s: float) -> list[Straggler]:
        """Each slow host once, until it has recovered."""
        slow = {one.process: one for one in self._slow()}
        self._slow_since = {process: self._slow_since.get(process, now_s) for process in slow}
        self._named &= slow.keys()
        lasting = {p for p, since_s in self._slow_since.items() if now_s - since_s >= LASTING_S}
        new = sorted(lasting - self._named)
        self._named |= lasting
        return [slow[process] for process in new]

    def _slow(self) -> Iterable[Straggler]:
        typical = {
            p: _median(beats) for p, beats in self._beats.items() if len(beats) == HEARTBEATS
        }
        for measure in ("own_s", "work_s"):
            values = {process: getattr(beat, measure) for process, beat in typical.items()}
            for process, factor in _factors(values).items():
                enough = RECOVERED_FACTOR if process in self._named else FACTOR
                if factor >= enough and _counts(typical[process], measure):
                    yield Straggler(process, factor, measure, values[process])


def _median(beats: Iterable[_Beat]) -> _Beat:
    columns = zip(*((beat.own_s, beat.step_time_s, beat.work_s) for beat in beats), strict=True)
    return _Beat(*map(statistics.median, columns))


def _counts(beat: _Beat, measure: str) -> bool:
    """Whether others feel it."""
    if measure == "work_s":
        return beat.work_s >= LEAST_WORK_S
    return beat.own_s >= max(LEAST_OWN_S, OWN_SHARE * beat.step_time_s)


def _factors(values: Mapping[int, float]) -> dict[int, float]:
    """Each host's value against the median of the others'."""
    if len(values) < 2:
        return {}
    ordered = sorted(values.values())
    return {p: value / max(1e-9, _median_without(ordered, value)) for p, value in values.items()}


def _median_without(ordered: list[float], value: float) -> float:
    """Of sorted numbers, one of which is left out."""
    place = ordered.index(value)
    return statistics.median(ordered[:place] + ordered[place + 1 :])
