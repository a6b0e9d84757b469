"""Hangs of one attempt, seen in what its hosts say. Pure: no Ray, no clock.

A host that sends heartbeats and falls silent is stuck: stopped, or cut off. One that is heard and
comes no further is stuck too, unless another one that is not ahead of it still does: then it waits
for that one. How long a host may stand still depends on its phase; between steps (and in later
evaluations and saves) it follows from how long they took before.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from launcher.core.results import Hang, StalledHost
from launcher.health.stragglers import Straggler, StragglerDetector
from trainer.contract.config.job import Deadlines

Event = Mapping[str, Any]

PHASES = (
    "data",
    "start",
    "restore",
    "compile",
    "evaluate",
    "save",
    "commit",
    "train",
    "sample",
    "end",
)
"""In the order in which hosts that are at the same step come through them. While one prepares its
data the others wait in `start`; one that waits for a batch holds up those in `train`."""
PROGRESS = {
    "started", "initialized", "phase", "progress", "step", "restored", "evaluated", "finished",
}  # fmt: skip
"""Events that say that the main loop has moved; warnings and saves can come from other threads."""
KEYS = {
    "start": "start_s", "data": "start_s", "compile": "compile_s", "restore": "restore_s",
    "evaluate": "evaluate_s", "save": "save_s", "commit": "save_s",
}  # fmt: skip
"""Phase -> what raises its limit in a job's `deadlines`; `step_s` for all others."""
FIRST_STEP_S, FIRST_EVALUATION_S = 600.0, 900.0
"""What the first ones have, which may compile."""
SAVE_SLACK_S = 100.0
RECENT, ENOUGH = 100, 3
"""A host's last times without progress in a phase, and how many say something of the next one."""
QUIET_S = 5.0
"""Two heartbeats are missing."""
LONGEST_LOOK_S = 2.0
"""Of the time between two looks no more counts: a driver that was stopped itself saw nothing."""


@dataclass(frozen=True)
class Limits:
    """How long a host may be silent or stand still."""

    silence_s: float = 12.0
    """Heartbeats come every 2 s."""
    silence_in_start_s: float = 60.0
    """Importing large libraries from a cold disk holds the interpreter's lock, heartbeats too."""
    phase_s: Mapping[str, float] = field(default_factory=lambda: _phases_s(Deadlines()))
    """Where nothing is known yet."""
    other_phases_s: float = FIRST_STEP_S
    learned_floor_s: Mapping[str, float] = field(default_factory=lambda: _floors_s(Deadlines()))
    """The shortest deadline in phases where earlier times tell how long the next one may take."""
    factor: float = 5.0
    """Of the 0.95 quantile of those times."""

    @classmethod
    def of(cls, deadlines: Deadlines) -> "Limits":
        """Those that a job asks for."""
        other_s = max(FIRST_STEP_S, deadlines.step_s)
        return cls(
            phase_s=_phases_s(deadlines),
            other_phases_s=other_s,
            learned_floor_s=_floors_s(deadlines),
        )


def _phases_s(deadlines: Deadlines) -> dict[str, float]:
    # The trainer's own limit of a save without progress speaks first.
    save_s = deadlines.save_s + SAVE_SLACK_S
    return {
        "start": deadlines.start_s,
        "data": max(FIRST_STEP_S, deadlines.start_s),
        "compile": deadlines.compile_s,
        "restore": deadlines.restore_s,
        "evaluate": max(FIRST_EVALUATION_S, deadlines.evaluate_s),
        "save": save_s,
        "commit": save_s,
    }


def _floors_s(deadlines: Deadlines) -> dict[str, float]:
    return {"train": deadlines.step_s, "evaluate": deadlines.evaluate_s}


class HangDetector:
    """Over the programs of one start of the gang; make a new one for the next start.

    Times are the driver's monotonic seconds. `expects_events`: a host that never sends one is stuck
    in its start; else it is a program that has nothing to say.
    """

    def __init__(
        self, processes: int, limits: Limits = Limits(), *, expects_events: bool = False
    ) -> None:
        self._limits = limits
        self._live = set(range(processes))
        self._hosts = {p: _Host(limits, 0.0) for p in self._live} if expects_events else {}
        self._paces = StragglerDetector()
        self._seen_at: float | None = None
        self._watched_s = 0.0

    def on_event(self, event: Event, now: float) -> None:
        """Every event of every host, when it arrives; what is no event of ours is ignored."""
        self._tick(now)
        process = event.get("process")
        if not isinstance(process, int) or process not in self._live:
            return
        promises = event.get("event") == "heartbeat" or event.get("event") in PROGRESS
        if process not in self._hosts and not promises:
            return
        host = self._hosts.setdefault(process, _Host(self._limits, self._watched_s))
        host.on_event(event, self._watched_s)
        if event.get("event") == "heartbeat" and host.in_loop:
            self._paces.on_heartbeat(process, event)

    def on_end(self, process: int) -> None:
        """Its program has ended: nobody waits for it any more, and what still comes is ignored."""
        self._live.discard(process)
        self._hosts.pop(process, None)
        self._paces.on_end(process)

    def poll(self, now: float) -> Hang | None:
        """Whether the gang hangs; call it about twice a second."""
        self._tick(now)
        quiet = {p: host for p, host in self._hosts.items() if self._quiet_s(host) > QUIET_S}
        # Whoever is quiet now will be heard again or be silent soon: that tells who is stuck.
        return self._silence(quiet) if quiet else self._standstill()

    def stragglers(self, now: float) -> list[Straggler]:
        """Hosts that have become slow since the last call and have been so for a while."""
        self._tick(now)
        return self._paces.named(self._watched_s)

    def _tick(self, now: float) -> None:
        if self._seen_at is not None:
            self._watched_s += min(max(0.0, now - self._seen_at), LONGEST_LOOK_S)
        self._seen_at = now

    def _quiet_s(self, host: "_Host") -> float:
        return self._watched_s - host.heard_s if host.beats else 0.0

    def _silence(self, quiet: "Mapping[int, _Host]") -> Hang | None:
        silent = {p: host for p, host in quiet.items() if self._quiet_s(host) > host.silence_s}
        if not silent:
            return None
        behind = [self._behind(process, host.heard_s) for process, host in silent.items()]
        limit_s = min(host.silence_s for host in silent.values())
        return self._hang(behind, silent=True, deadline_s=limit_s)

    def _standstill(self) -> Hang | None:
        """The hosts that are behind all others, once each of them has had its time."""
        if not self._hosts:
            return None
        last = min(host.position for host in self._hosts.values())
        hosts = {p: host for p, host in self._hosts.items() if host.position == last}
        if any(self._watched_s - host.moved_s <= host.deadline_s for host in hosts.values()):
            return None
        behind = [self._behind(process, host.moved_s) for process, host in hosts.items()]
        slowest = max(hosts.values(), key=lambda host: host.deadline_s)
        hang = self._hang(behind, silent=False, deadline_s=slowest.deadline_s)
        return replace(hang, key=slowest.key)

    def _hang(self, behind: list[StalledHost], *, silent: bool, deadline_s: float) -> Hang:
        everybody = len(behind) == len(self._hosts)
        behind = sorted(behind, key=lambda one: one.process)
        return Hang(tuple(behind), silent, deadline_s, everybody)

    def _behind(self, process: int, since_s: float) -> StalledHost:
        host = self._hosts[process]
        return StalledHost(process, host.phase, host.step, self._watched_s - since_s)


class _Host:
    """What one host has told of itself."""

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._limits = limits
        self.phase, self.step = "start", 0
        self.in_loop = False
        """Whether it makes steps: what it does then between them is part of one."""
        self.beats = False
        """Whether it has promised to be heard."""
        self.heard_s = self.moved_s = now_s
        self._times_s = {name: deque[float](maxlen=RECENT) for name in limits.learned_floor_s}

    @property
    def position(self) -> tuple[int, int]:
        """Compared between hosts: the one with the lower position holds up the others."""
        known = self.phase if self.phase in PHASES else "train"
        return self.step, PHASES.index(known)

    def on_event(self, event: Event, now_s: float) -> None:
        self.heard_s = now_s
        kind, before = event.get("event"), (self._timed, self.step)
        if kind == "heartbeat":
            self.beats = True
            self._be(event.get("phase"), event.get("step"))
        elif kind == "phase" and event.get("edge") == "begin":
            self._be(event.get("name"), None)
        elif kind == "step":
            self._be("train", event.get("step"))
        writes = kind == "save_progress" and self.phase == "commit"
        if kind in PROGRESS or writes or (self._timed, self.step) != before:
            self._learn(before[0], now_s - self.moved_s)
            self.moved_s = now_s

    @property
    def silence_s(self) -> float:
        """How long it may say nothing."""
        starts = self.phase == "start"
        return self._limits.silence_in_start_s if starts else self._limits.silence_s

    @property
    def deadline_s(self) -> float:
        """How long it may stand still where it is now."""
        limits, times_s = self._limits, self._times_s.get(self._timed, ())
        if len(times_s) < ENOUGH:
            return limits.phase_s.get(self._timed, limits.other_phases_s)
        return max(limits.learned_floor_s[self._timed], limits.factor * _quantile(times_s))

    @property
    def key(self) -> str:
        """What raises its limit, in the job's `deadlines`."""
        return KEYS.get(self._timed, "step_s")

    @property
    def _timed(self) -> str:
        """The phase whose deadline holds: a wait for the next batch is a part of a step."""
        return "train" if self.in_loop and self.phase == "data" else self.phase

    def _learn(self, phase: str, took_s: float) -> None:
        if phase in self._times_s:
            self._times_s[phase].append(took_s)

    def _be(self, phase: object, step: object) -> None:
        """Anybody's programs send events: what makes no sense changes nothing."""
        if isinstance(phase, str):
            self.phase = phase
            self.in_loop = self.in_loop or phase == "train"
        if isinstance(step, int):
            self.step = max(self.step, step)


def _quantile(times_s: Collection[float], share: float = 0.95) -> float:
    return sorted(times_s)[math.ceil(share * len(times_s)) - 1]
