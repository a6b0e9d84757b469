"""Detects slow hosts of a gang by the measures that they report. Pure: no clock.

All hosts take the same time for a step, because they wait for each other in it. Two measures in the
heartbeats distinguish them. One is a host's own time in a step, in which it did not wait for the
devices (mostly for reading data). The other is the time that a fixed small piece of work took its
processors.
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
"""Number of heartbeats whose median is a host's value."""
OWN_LASTING_S, WORK_LASTING_S = 6.0, 45.0
"""Seconds for which a host is slow before it is named. The work takes only a millisecond: two
healthy hosts on one overloaded machine differed for 20 s."""
OWN_SHARE = 0.5
"""Share of the step: less own time than this is hidden behind the work of the devices."""
LEAST_OWN_S, LEAST_WORK_S = 0.02, 0.001
"""Seconds below which a measure is noise."""


@dataclass(frozen=True)
class Straggler:
    """A slow host; `str` describes it."""

    process: int
    factor: float
    """Its value divided by the median of all hosts."""
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
    """Compares the heartbeats of the hosts that make steps."""

    def __init__(self) -> None:
        self._own = _Measure("own_s", OWN_LASTING_S)
        self._work = _Measure("work_s", WORK_LASTING_S)
        self._named: set[int] = set()

    def on_heartbeat(self, process: int, event: Mapping[str, Any]) -> None:
        """Records the measures of a host; ignores a measure that the heartbeat lacks."""
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
        """Returns each slow host once, until it has recovered."""
        slow = {**self._work.lasting(now_s), **self._own.lasting(now_s)}
        new = sorted(slow.keys() - self._named)
        self._named = set(slow)
        return [slow[process] for process in new]


class _Measure:
    """One measure of every host; a host is slow once its medians have been so for `lasting_s`."""

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
        """Returns the hosts that have been slow for long enough."""
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
        # The lower median: with two hosts, the fast one's.
        usual = max(1e-9, statistics.median_low(values.values()))
        slow = {}
        for process, value_s in values.items():
            enough = RECOVERED_FACTOR if self._is_lasting(process, now_s) else FACTOR
            matters = 2 * sum(matters for _, matters in known[process]) > HEARTBEATS
            if matters and value_s / usual >= enough:
                slow[process] = Straggler(process, value_s / usual, self._name, value_s)
        return slow


def _seconds(event: Mapping[str, Any], name: str) -> float | None:
    """Returns None for a value that is not a time: any program can send events."""
    value = event.get(name)
    return value if isinstance(value, float) and 0 <= value < math.inf else None
