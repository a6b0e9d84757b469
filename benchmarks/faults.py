"""What recovery.py and soak.py have in common: faults, and how a run tells that it got over one."""

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tests.support.assert_no_leftovers import Traces
from tests.support.processes import wait_until
from tests.support.programs import agent_of, node_of, trainer_of

Event = dict[str, Any]
Fire = Callable[[Traces, int], float]
"""Hits a process of the run, by its number; returns when, in seconds since the epoch."""
Victim = Callable[[Traces, int], int]
LOOK_S = 0.01
DEADLINE_S = 300.0


@contextmanager
def workplace() -> Iterator[tuple[Path, Traces]]:
    """A folder, and an environment for what is started; both are gone on the way out."""
    traces = Traces()

    def end_all() -> bool:
        for process in (left := traces.processes()):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return not left

    with tempfile.TemporaryDirectory() as folder:
        try:
            yield Path(folder), traces
        finally:
            wait_until(end_all)
            traces.remove()


def faults(flag: Path, trainer_of: Victim = trainer_of) -> dict[str, Fire]:
    """Every fault by its name; `flag` is what the cluster's sabotage looks at, see `sleeps_at`."""
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
    """The code of a sabotage that sleeps once when it finds the flag, and takes it away."""
    return f"os.path.exists({str(flag)!r}) and (os.unlink({str(flag)!r}), time.sleep(9999))"


def _by_signal(victim_of: Victim, number: signal.Signals) -> Fire:
    def fire(traces: Traces, process: int) -> float:
        victim = victim_of(traces, process)
        fired = time.time()
        os.kill(victim, number)
        return fired

    return fire


def _by_sleep(flag: Path) -> Fire:
    """On the host that is sabotaged, whatever process is asked for."""

    def fire(_: Traces, process: int) -> float:
        flag.touch()
        wait_until(lambda: not flag.exists())
        return time.time()

    return fire


@dataclass(frozen=True)
class Recovery:
    """From a fault to where the run was before."""

    kind: str
    """What the launcher took the fault for."""
    first_s: float
    """To the first step of the attempt that follows."""
    new_s: float
    """To a step that no attempt had made before."""


class NotRecoveredError(Exception):
    """The run did not go on; says what it printed."""


class Run(Protocol):
    """What writes the events of a run."""

    run_dir: Path

    @property
    def process(self) -> subprocess.Popen[bytes]: ...

    @property
    def output(self) -> str: ...


class Story:
    """What the events of a run tell, read as they are written."""

    def __init__(self, run: Run) -> None:
        self._run, self._events = run, _follow(run.run_dir / "events.jsonl")
        self.attempt, self.step = 1, 0
        """The highest so far."""

    def wait_for(self, condition: Callable[[Event], bool], limit_s: float = DEADLINE_S) -> Event:
        """The next event that is meant; told of before it is counted in `attempt` and `step`.

        Raises NotRecoveredError where the run ends before, or it does not come within `limit_s`.
        """
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            event = next(self._events)
            if event is None:
                if self._run.process.poll() is not None:
                    raise NotRecoveredError(f"it ended early:\n{self._run.output}")
                time.sleep(LOOK_S)
                continue
            is_meant = condition(event)
            self._note(event)
            if is_meant:
                return event
        raise NotRecoveredError(f"not within {limit_s:.0f} s:\n{self._run.output}")

    def catch_up(self) -> None:
        """With all that is told by now."""
        while event := next(self._events):
            self._note(event)

    def wait_for_steps(self, count: int) -> None:
        """So many new ones."""
        wanted = self.step + count
        self.wait_for(lambda event: event["event"] == "step" and event["step"] >= wanted)

    def wait_for_phase(self, name: str) -> None:
        """Until host 0 begins one; `start` is the beginning of its program."""
        phase = {"event": "phase", "name": name, "edge": "begin"}
        about = {"event": "started"} if name == "start" else phase
        wanted = {**about, "process": 0}.items()
        self.wait_for(lambda event: wanted <= event.items())

    def recovery(self, fired: float, limit_s: float = DEADLINE_S) -> Recovery:
        """Of a fault that was fired in the attempt that runs. Raises NotRecoveredError."""
        hit, kind = self.attempt, ""
        first: Event = {}

        def is_new(event: Event) -> bool:
            nonlocal kind, first
            if event["event"] == "attempt_ended" and event["attempt"] == hit:
                kind = event["kind"]
            if event["event"] != "step" or event["attempt"] <= hit:
                return False
            first = first or event
            return event["step"] > self.step

        new = self.wait_for(is_new, limit_s)
        return Recovery(kind, first["time"] - fired, new["time"] - fired)

    def _note(self, event: Event) -> None:
        self.attempt = max(self.attempt, event.get("attempt") or 0)
        if event["event"] == "step":
            self.step = max(self.step, event["step"])


def _follow(path: Path) -> Iterator[Event | None]:
    """Every event; None where there is no more for now, as often as it is asked."""
    while not path.exists():
        yield None
    half = ""
    with path.open() as file:
        while True:
            *lines, half = (half + file.read()).split("\n")
            yield from map(json.loads, lines)
            yield None
