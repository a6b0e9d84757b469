"""Which hosts of a gang are slow, by what they measure of themselves. Pure: no clock.

All hosts make a step in the same time, because they wait for each other in it. Two measures in the
heartbeats tell them apart: a host's own time in a step, in which it did not wait for the devices
(reading data above all), and the time that a fixed small piece of work took its processors.
"""

import math
import statistics
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from launcher.core.formatting import host_name

FACTOR, RECOVERED_FACTOR = 2.0, 1.5
HEARTBEATS = 5
"""Their median is what a host is measured by."""
OWN_LASTING_S, WORK_LASTING_S = 6.0, 45.0
"""So long a host has been slow before it is named. The work takes but a millisecond: two healthy
hosts on one overloaded machine looked unlike each other for 20 s."""
OWN_SHARE = 0.5
"""Of the step: less own time than this is hidden behind the work of the devices."""
LEAST_OWN_S, LEAST_WORK_S = 0.02, 0.001
"""Less than this is noise."""


@dataclass(frozen=True)
class Straggler:
    """A slow host; in words by `str`."""

    process: int
    factor: float
    """Its value against the median of all hosts'."""
    measure: str
    """ "own_s" or "work_s"."""
    value_s: float

    def __str__(self) -> str:
        what = {"own_s": "of its own in each step", "work_s": "for a small fixed piece of work"}
        return (
            f"{host_name(self.process)} is slow: it takes {1000 * self.value_s:.0f} ms "
            f"{what[self.measure]}, {self.factor:.1f} times what is usual"
        )


class StragglerDetector:
    """What the hosts that make steps say in their heartbeats, compared."""

    def __init__(self) -> None:
        self._own = _Measure("own_s", OWN_LASTING_S)
        self._work = _Measure("work_s", WORK_LASTING_S)
        self._named: set[int] = set()

    def on_heartbeat(self, process: int, event: Mapping[str, Any]) -> None:
        """Nothing, where the program measures nothing or has made no step yet."""
        own_s, step_time_s = _seconds(event, "own_s"), _seconds(event, "step_time_s")
        if own_s is not None and step_time_s is not None:
            self._own.note(process, own_s, own_s >= max(LEAST_OWN_S, OWN_SHARE * step_time_s))
        work_s = _seconds(event, "work_s")
        if work_s is not None:
            self._work.note(process, work_s, work_s >= LEAST_WORK_S)

    def on_end(self, process: int) -> None:
        self._own.forget(process)
        self._work.forget(process)

    def named(self, now_s: float) -> list[Straggler]:
        """Each slow host once, until it has recovered."""
        slow = {**self._work.lasting(now_s), **self._own.lasting(now_s)}
        new = sorted(slow.keys() - self._named)
        self._named = set(slow)
        return [slow[process] for process in new]


class _Measure:
    """One number of every host; a slow one has been so for `lasting_s`, by its last medians."""

    def __init__(self, name: str, lasting_s: float) -> None:
        self._name, self._lasting_s = name, lasting_s
        self._said: dict[int, deque[tuple[float, bool]]] = {}
        self._slow_since: dict[int, float] = {}

    def note(self, process: int, value_s: float, matters: bool) -> None:
        said = self._said.setdefault(process, deque(maxlen=HEARTBEATS))
        said.append((value_s, matters))

    def forget(self, process: int) -> None:
        self._said.pop(process, None)

    def lasting(self, now_s: float) -> dict[int, Straggler]:
        """The hosts that are slow, and have been for long enough."""
        slow = self._slow(now_s)
        self._slow_since = {process: self._slow_since.get(process, now_s) for process in slow}
        return {p: one for p, one in slow.items() if self._is_lasting(p, now_s)}

    def _is_lasting(self, process: int, now_s: float) -> bool:
        return now_s - self._slow_since.get(process, now_s) >= self._lasting_s

    def _slow(self, now_s: float) -> dict[int, Straggler]:
        known = {p: said for p, said in self._said.items() if len(said) == HEARTBEATS}
        values = {p: statistics.median(v for v, _ in said) for p, said in known.items()}
        if len(values) < 2:
            return {}
        # The lower median: of two hosts, the fast one's.
        usual = max(1e-9, statistics.median_low(values.values()))
        slow = {}
        for process, value_s in values.items():
            enough = RECOVERED_FACTOR if self._is_lasting(process, now_s) else FACTOR
            matters = 2 * sum(matters for _, matters in known[process]) > HEARTBEATS
            if matters and value_s / usual >= enough:
                slow[process] = Straggler(process, value_s / usual, self._name, value_s)
        return slow


def _seconds(event: Mapping[str, Any], name: str) -> float | None:
    """None for what is no time: anybody's programs send events."""
    value = event.get(name)
    return value if isinstance(value, float) and 0 <= value < math.inf else None
