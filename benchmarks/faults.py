"""Faults, and the detection of a run's recovery from one, for recovery.py and soak.py."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tests.support.assert_no_leftovers import Traces
from tests.support.processes import wait_until
from tests.support.programs import agent_of, node_of, trainer_of

Event = dict[str, Any]
Fire = Callable[[Traces, int], float]
"""Function that hits a process of the run, by its number; returns the time since the epoch in s."""
Victim = Callable[[Traces, int], int]
POLL_INTERVAL_S = 0.01
DEADLINE_S = 300.0


@contextmanager
def workplace() -> Iterator[tuple[Path, Traces]]:
    """Yields a folder, and an environment for processes; removes the folder and ends them.

    SIGTERM ends this program like an exception, so that it leaves neither.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended by SIGTERM"))
    with tempfile.TemporaryDirectory() as folder, Traces() as traces:
        yield Path(folder), traces


def faults(flag: Path, trainer_of: Victim = trainer_of) -> dict[str, Fire]:
    """Returns every fault by its name; `flag` is the file of the sabotage: see `sleeps_at`."""
    return {
        "SIGKILL of a trainer": _by_signal(trainer_of, signal.SIGKILL),
        "SIGKILL of an agent": _by_signal(agent_of, signal.SIGKILL),
        "SIGKILL of a node": _by_signal(node_of, signal.SIGKILL),
        "SIGTERM of a trainer": _by_signal(trainer_of, signal.SIGTERM),
        "SIGTERM of a node": _by_signal(node_of, signal.SIGTERM),
        "SIGSTOP of a trainer": _by_signal(trainer_of, signal.SIGSTOP),
        "sleep in a data loader": _by_sleep(flag),
    }


def sleeps_at(flag: Path) -> str:
    """Returns code of a sabotage that sleeps once when it finds the flag, which it removes."""
    return f"os.path.exists({str(flag)!r}) and (os.unlink({str(flag)!r}), time.sleep(9999))"


def _by_signal(victim_of: Victim, number: signal.Signals) -> Fire:
    def fire(traces: Traces, process: int) -> float:
        victim = victim_of(traces, process)
        fired = time.time()
        os.kill(victim, number)
        return fired

    return fire


def _by_sleep(flag: Path) -> Fire:
    """Returns a fault of the host that is sabotaged; it ignores the requested process."""

    def fire(_: Traces, process: int) -> float:
        flag.touch()
        wait_until(lambda: not flag.exists())
        return time.time()

    return fire


@dataclass(frozen=True)
class Recovery:
    """A recovery from a fault, in seconds since the fault."""

    kind: str
    """The launcher's classification of the fault."""
    first_s: float
    """Until the first step of the next attempt."""
    new_s: float
    """Until the first step that no attempt had made before."""
    repeated: int = 0
    """Steps that the next attempt repeats."""
    parts_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """The parts of `first_s`, in order: see `PARTS`."""
    traces: int = 0
    """Traces and compilations of the process that made the most of them before its first step."""


PARTS = {
    "detect": "hang",
    "end": "attempt_ended",
    "host": "started",
    "rendezvous": "initialized",
    "state": "restore",
    "executable": "compile",
    "first step": "step",
}
"""The parts of a recovery, and the event or phase whose last end on any host ends the part. Without
a hang, the launcher's events do not separate the detection from the end of the other programs."""


def _parts(fired: float, ends: Mapping[str, float]) -> dict[str, float]:
    """Returns the seconds of each part, from the time at which each event or phase ended."""
    parts, before = {}, fired
    for part, end in PARTS.items():
        after = max(before, ends.get(end, before))
        parts[part] = after - before
        before = after
    return parts


class NotRecoveredError(Exception):
    """The run did not recover; the message contains its output."""


class Run(Protocol):
    """A run whose events are followed."""

    run_dir: Path

    @property
    def process(self) -> subprocess.Popen[bytes]: ...

    @property
    def output(self) -> str: ...


class Story:
    """The state of a run, from its events as they are written."""

    def __init__(self, run: Run) -> None:
        self._run, self._events = run, _follow(run.run_dir / "events.jsonl")
        self.attempt, self.step = 1, 0
        """The highest attempt and step so far."""

    def wait_for(self, condition: Callable[[Event], bool], limit_s: float = DEADLINE_S) -> Event:
        """Returns the next event that meets `condition`, which sees `attempt` and `step` before it.

        Raises NotRecoveredError when the run ends first, or no such event comes within `limit_s`.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            event = next(self._events)
            if event is None:
                if self._run.process.poll() is not None:
                    raise NotRecoveredError(f"the run ended early:\n{self._run.output}")
                time.sleep(POLL_INTERVAL_S)
                continue
            is_met = condition(event)
            self._record(event)
            if is_met:
                return event
        raise NotRecoveredError(f"no recovery within {limit_s:.0f} s:\n{self._run.output}")

    def catch_up(self) -> None:
        """Reads all events that are written by now."""
        while event := next(self._events):
            self._record(event)

    def wait_for_steps(self, count: int) -> None:
        """Waits for `count` new steps."""
        wanted = self.step + count
        self.wait_for(lambda event: event["event"] == "step" and event["step"] >= wanted)

    def wait_for_phase(self, name: str) -> None:
        """Waits until host 0 begins a phase; `start` is the beginning of its program."""
        phase = {"event": "phase", "name": name, "edge": "begin"}
        about = {"event": "started"} if name == "start" else phase
        wanted = {**about, "process": 0}.items()
        self.wait_for(lambda event: wanted <= event.items())

    def recovery(self, fired: float, limit_s: float = DEADLINE_S) -> Recovery:
        """Waits for the recovery from a fault in the current attempt. Raises NotRecoveredError."""
        hit, kind, traces = self.attempt, "", 0
        first: Event = {}
        ends: dict[str, float] = {}

        def is_new(event: Event) -> bool:
            nonlocal kind, first, traces
            attempt = event.get("attempt") or 0  # some events of the launcher have none
            if event["event"] == "attempt_ended" and attempt == hit:
                kind = event["end_reason"]
            if not first and (attempt > hit or event["event"] in ("hang", "attempt_ended")):
                ends[_end_of(event)] = event["time"]
            if event["event"] == "compiled" and attempt > hit:
                traces = max(traces, event["traces"] + event["compilations"])
            if event["event"] != "step" or attempt <= hit:
                return False
            first = first or event
            return event["step"] > self.step

        new = self.wait_for(is_new, limit_s)
        parts_s = _parts(fired, ends)
        repeated = new["step"] - first["step"]
        first_s, new_s = first["time"] - fired, new["time"] - fired
        return Recovery(kind, first_s, new_s, repeated, parts_s, traces)

    def _record(self, event: Event) -> None:
        self.attempt = max(self.attempt, event.get("attempt") or 0)
        if event["event"] == "step":
            self.step = max(self.step, event["step"])


def _end_of(event: Event) -> str:
    """Returns what an event is the end of, in the words of `PARTS`."""
    if event["event"] == "phase":
        return event["name"] if event["edge"] == "end" else ""
    return event["event"]


def _follow(path: Path) -> Iterator[Event | None]:
    """Yields every event, and None whenever no more is written yet."""
    while not path.exists():
        yield None
    half = ""
    with path.open() as file:
        while True:
            *lines, half = (half + file.read()).split("\n")
            yield from map(json.loads, lines)
            yield None
