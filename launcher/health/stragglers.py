"""Detects slow hosts of a gang by the measures that they report. Pure: no clock.

All hosts take the same time for a step, because they wait for each other in it. Two measures in the
heartbeats distinguish them. One is a host's own time in a step, in which it did not wait for the
devices (mostly for reading data). The other is the time that a fixed small piece of work took its
processors.
"""

import math
import statistics
from collections import deque
from dataclasses import dataclass, replace
from typing import Literal, TypeGuard

from trainer.contract.protocol.events import HeartbeatEvent
from trainer.contract.protocol.process_names import process_name

FACTOR, RECOVERED_FACTOR = 2.0, 1.5
HEARTBEATS = 5
"""Number of heartbeats whose median is a host's value."""
HOST_TIME_LASTING_S, CPU_PROBE_LASTING_S = 6.0, 45.0
"""Seconds for which a host is slow before it is named. The probe takes only a millisecond: two
healthy hosts on one overloaded machine differed for 20 s."""
HOST_TIME_SHARE = 0.5
"""Share of the step: less time of the host than this is hidden behind the work of the devices."""
LEAST_HOST_TIME_S, LEAST_CPU_PROBE_S = 0.02, 0.001
"""Seconds below which a measure is noise."""


Measure = Literal["host_time_s", "cpu_probe_s"]
DESCRIPTIONS: dict[Measure, str] = {
    "host_time_s": "of its own in each step",
    "cpu_probe_s": "for a fixed small piece of work",
}


@dataclass(frozen=True)
class Straggler:
    """A slow host; `str` describes it."""

    process: int
    factor: float
    """Its value divided by the median of all hosts."""
    measure: Measure
    value_s: float
    processes_per_host: int = 1

    def __str__(self) -> str:
        name = process_name(self.process, self.processes_per_host)
        return (
            f"{name} is slow: it takes {1000 * self.value_s:.0f} ms "
            f"{DESCRIPTIONS[self.measure]}, {self.factor:.1f} times what is usual"
        )


class StragglerDetector:
    """Compares the heartbeats of the hosts that make steps."""

    def __init__(self, processes_per_host: int = 1) -> None:
        self._processes_per_host = processes_per_host
        self._host_time = _History("host_time_s", HOST_TIME_LASTING_S)
        self._cpu_probe = _History("cpu_probe_s", CPU_PROBE_LASTING_S)
        self._named: set[int] = set()

    def on_heartbeat(self, process: int, event: HeartbeatEvent) -> None:
        """Records the measures of a host; ignores a measure that the heartbeat lacks."""
        host_time_s, step_time_s = event.host_time_s, event.step_time_s
        if _is_time(host_time_s) and _is_time(step_time_s):
            least_s = max(LEAST_HOST_TIME_S, HOST_TIME_SHARE * step_time_s)
            self._host_time.add(process, host_time_s, host_time_s >= least_s)
        if _is_time(event.cpu_probe_s):
            matters = event.cpu_probe_s >= LEAST_CPU_PROBE_S
            self._cpu_probe.add(process, event.cpu_probe_s, matters)

    def on_end(self, process: int) -> None:
        self._host_time.forget(process)
        self._cpu_probe.forget(process)

    @property
    def slow(self) -> frozenset[int]:
        """The hosts that were named and have not recovered."""
        return frozenset(self._named)

    def named(self, now_s: float) -> list[Straggler]:
        """Returns each slow host once, until it has recovered."""
        slow = {**self._cpu_probe.lasting(now_s), **self._host_time.lasting(now_s)}
        new = sorted(slow.keys() - self._named)
        self._named = set(slow)
        count = self._processes_per_host
        return [replace(slow[process], processes_per_host=count) for process in new]


class _History:
    """The values of one measure. A host is slow when its medians have been for `lasting_s`."""

    def __init__(self, measure: Measure, lasting_s: float) -> None:
        self._measure: Measure = measure
        self._lasting_s = lasting_s
        self._reported: dict[int, deque[tuple[float, bool]]] = {}
        self._slow_since: dict[int, float] = {}

    def add(self, process: int, value_s: float, matters: bool) -> None:
        reported = self._reported.setdefault(process, deque(maxlen=HEARTBEATS))
        reported.append((value_s, matters))

    def forget(self, process: int) -> None:
        self._reported.pop(process, None)

    def lasting(self, now_s: float) -> dict[int, Straggler]:
        """Returns the hosts that have been slow for long enough."""
        slow = self._slow(now_s)
        self._slow_since = {process: self._slow_since.get(process, now_s) for process in slow}
        return {p: one for p, one in slow.items() if self._is_lasting(p, now_s)}

    def _is_lasting(self, process: int, now_s: float) -> bool:
        return now_s - self._slow_since.get(process, now_s) >= self._lasting_s

    def _slow(self, now_s: float) -> dict[int, Straggler]:
        known = {
            p: reported for p, reported in self._reported.items() if len(reported) == HEARTBEATS
        }
        values = {p: statistics.median(v for v, _ in reported) for p, reported in known.items()}
        if len(values) < 2:
            return {}
        # The lower median: with two hosts, the fast one's.
        usual = max(1e-9, statistics.median_low(values.values()))
        slow: dict[int, Straggler] = {}
        for process, value_s in values.items():
            enough = RECOVERED_FACTOR if self._is_lasting(process, now_s) else FACTOR
            matters = 2 * sum(matters for _, matters in known[process]) > HEARTBEATS
            if matters and value_s / usual >= enough:
                slow[process] = Straggler(process, value_s / usual, self._measure, value_s)
        return slow


def _is_time(value_s: float | None) -> TypeGuard[float]:
    """Returns False for a value that is not a time: any program can send events."""
    return value_s is not None and 0 <= value_s < math.inf
