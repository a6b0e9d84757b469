"""Detects hangs of one attempt from the events of its hosts. Pure: no Ray, no clock.

A host whose program the kernel has stopped is stuck. A host that sends heartbeats and falls silent
is stuck too: its program does not run, or it is cut off. A host that sends events but makes no
progress is stuck too, unless a host that is not ahead of it still makes progress: then it waits for
that host. The time limit depends on the phase of the host. Between steps, and in later evaluations,
the limit follows from how long they took before, and is shorter for a host that is idle while the
others wait for it: it neither computes nor waits for a processor or a disk. Times in which a host
was busy, as with a save beside its steps, do not lengthen the limit of an idle one.
"""

import math
from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from launcher.core.events import SuspendedEvent
from launcher.core.results import Hang, StalledHost
from launcher.health.stragglers import Straggler, StragglerDetector
from trainer.contract.config.job import Deadlines
from trainer.contract.protocol.events import (
    EvalEvent,
    Event,
    FinishedEvent,
    HeartbeatEvent,
    InitializedEvent,
    PhaseEvent,
    ProgressEvent,
    RestoredEvent,
    SaveProgressEvent,
    StartedEvent,
    StepEvent,
)

PHASES = (
    "data",
    "start",
    "restore",
    "compile",
    "evaluate",
    "save",
    "commit",
    "check",
    "train",
    "sample",
    "end",
)
"""Phases in the order in which hosts at the same step pass through them. While one host prepares
its data, the others wait in `start`; a host that waits for a batch holds up those in `train`."""
PROGRESS = (
    StartedEvent, InitializedEvent, PhaseEvent, ProgressEvent, StepEvent, RestoredEvent, EvalEvent,
    FinishedEvent,
)  # fmt: skip
"""Events that show progress of the main loop; warnings and saves can come from other threads."""
KEYS = {
    "start": "start_s", "data": "start_s", "compile": "compile_s", "restore": "restore_s",
    "evaluate": "evaluate_s", "save": "save_s", "commit": "save_s",
}  # fmt: skip
"""Phase -> the key of a job's `deadlines` that raises its limit; `step_s` for all others."""
FIRST_STEP_S, FIRST_EVALUATION_S = 600.0, 900.0
"""Seconds for the first step and the first evaluation, which may compile."""
SAVE_SLACK_S = 100.0
RECENT, ENOUGH = 100, 3
"""Number of times without progress kept per host and phase, and number needed to predict one."""
IDLE_SHARE, IDLE_PROBE_S = 0.05, 0.05
"""The busy share and the CPU probe below which a host is idle: its program sleeps, although it
could have a processor. The heartbeat thread itself has a share of about 0.001."""
QUIET_S = 5.0
"""Seconds after which two heartbeats are missing."""
LONGEST_INTERVAL_S = 2.0
"""Most seconds that count between two polls: a driver that was itself stopped saw nothing."""


@dataclass(frozen=True)
class Limits:
    """Limits on how long a host may be silent or make no progress."""

    silence_s: float = 12.0
    """Seconds without an event; heartbeats arrive every 2 s."""
    silence_in_start_s: float = 60.0
    """Seconds during `start` and the first step. What holds the GIL delays heartbeats: imports from
    a cold disk, and on a busy machine the first run of a program."""
    phase_s: Mapping[str, float] = field(default_factory=lambda: _phases_s(Deadlines()))
    """Seconds without progress in each phase while no earlier times are known."""
    other_phases_s: float = FIRST_STEP_S
    learned_floor_s: Mapping[str, float] = field(default_factory=lambda: _floors_s(Deadlines()))
    """The shortest deadline in each phase whose deadline is learned from earlier times."""
    factor: float = 5.0
    """The learned deadline as a multiple of the 0.95 quantile of those times."""
    idle_floor: float = 0.4
    """The shortest learned deadline of an idle host, as a share of that of a busy one."""
    idle_factor: float = 3.0
    """`factor` of an idle host. It does not compute slowly: what it waits for does not come."""
    never_idle_factor: float = 1.5
    """The same of a host that was busy in all its earlier steps."""

    @classmethod
    def of(cls, deadlines: Deadlines) -> "Limits":
        """Returns the limits that a job requests."""
        other_s = max(FIRST_STEP_S, deadlines.step_s)
        return cls(
            phase_s=_phases_s(deadlines),
            other_phases_s=other_s,
            learned_floor_s=_floors_s(deadlines),
        )


def _phases_s(deadlines: Deadlines) -> dict[str, float]:
    # The trainer's own limit on a save without progress applies first.
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
    """Detects hangs in the programs of one start of the gang; the next start needs a new detector.

    Times are the driver's monotonic seconds. With `expects_events`, a host that never sends an
    event is stuck in its start. Without it, that host runs a program that sends no events.
    """

    def __init__(
        self,
        processes: int | Collection[int],
        limits: Limits = Limits(),
        *,
        expects_events: bool = False,
        processes_per_host: int = 1,
    ) -> None:
        """Creates a detector of `processes`, which are their number or their numbers."""
        self._limits, self._processes_per_host = limits, processes_per_host
        self._live = set(range(processes) if isinstance(processes, int) else processes)
        self._hosts = {p: _Host(limits, 0.0) for p in self._live} if expects_events else {}
        self._paces = StragglerDetector(processes_per_host)
        self._suspended: dict[int, float] = {}
        """Processes that do not run, and the seconds for which they have not."""
        self._seen_at: float | None = None
        self._watched_s = 0.0

    def on_event(self, event: Event, now: float) -> None:
        """Handles an event that arrived at `now`; ignores events that are not Slipway's."""
        self._tick(now)
        process = event.process
        if process is None or process not in self._live:
            return
        promises = isinstance(event, (HeartbeatEvent, *PROGRESS))
        if process not in self._hosts and not (promises or isinstance(event, SuspendedEvent)):
            return
        if isinstance(event, SuspendedEvent):
            self._suspended[process] = event.seconds or 0.0
            return
        host = self._hosts.setdefault(process, _Host(self._limits, self._watched_s))
        host.on_event(event, self._watched_s)
        if isinstance(event, HeartbeatEvent) and host.in_loop:
            self._paces.on_heartbeat(process, event)

    def on_end(self, process: int) -> None:
        """Forgets a process whose program has ended; its later events are ignored."""
        self._live.discard(process)
        self._suspended.pop(process, None)
        self._hosts.pop(process, None)
        self._paces.on_end(process)

    def poll(self, now: float) -> Hang | None:
        """Returns a hang, or None when the gang does not hang; call it a few times a second."""
        self._tick(now)
        if self._suspended:
            return self._suspension()
        quiet = {p: host for p, host in self._hosts.items() if self._quiet_s(host) > QUIET_S}
        # A quiet host soon sends an event or counts as silent: that shows which host is stuck.
        return self._silence(quiet) if quiet else self._standstill()

    def stragglers(self, now: float) -> list[Straggler]:
        """Returns hosts that have become slow since the last call and were slow for a while."""
        self._tick(now)
        return self._paces.named(self._watched_s)

    @property
    def slow(self) -> frozenset[int]:
        """The stragglers that have not recovered."""
        return self._paces.slow

    def _tick(self, now: float) -> None:
        if self._seen_at is not None:
            self._watched_s += min(max(0.0, now - self._seen_at), LONGEST_INTERVAL_S)
        self._seen_at = now

    def _quiet_s(self, host: "_Host") -> float:
        return self._watched_s - host.last_event_s if host.beats else 0.0

    def _suspension(self) -> Hang:
        """Returns the hang of hosts whose programs the kernel has stopped."""
        for process in self._suspended:
            self._hosts.setdefault(process, _Host(self._limits, self._watched_s))
        behind = [self._behind(p, self._watched_s - s) for p, s in self._suspended.items()]
        limit_s = max(self._suspended.values())
        return replace(self._hang(behind, silent=True, deadline_s=limit_s), suspended=True)

    def _silence(self, quiet: "Mapping[int, _Host]") -> Hang | None:
        silent = {p: host for p, host in quiet.items() if self._quiet_s(host) > host.silence_s}
        if not silent:
            return None
        behind = [self._behind(process, host.last_event_s) for process, host in silent.items()]
        limit_s = min(host.silence_s for host in silent.values())
        return self._hang(behind, silent=True, deadline_s=limit_s)

    def _standstill(self) -> Hang | None:
        """Returns a hang of the hosts behind all others once all of them exceed their deadlines."""
        if not self._hosts:
            return None
        last = min(host.position for host in self._hosts.values())
        hosts = {p: host for p, host in self._hosts.items() if host.position == last}
        # Hosts that are all at one place may wait for their network.
        is_alone = len(hosts) < len(self._hosts) or len(hosts) == 1
        is_idle = is_alone and all(host.is_idle for host in hosts.values())
        deadlines_s = {p: host.deadline_s(is_idle=is_idle) for p, host in hosts.items()}
        if any(self._watched_s - hosts[p].moved_s <= d for p, d in deadlines_s.items()):
            return None
        behind = [self._behind(process, host.moved_s) for process, host in hosts.items()]
        slowest = max(deadlines_s, key=deadlines_s.__getitem__)
        hang = self._hang(behind, silent=False, deadline_s=deadlines_s[slowest])
        return replace(hang, key=hosts[slowest].key, idle=is_idle)

    def _hang(self, behind: list[StalledHost], *, silent: bool, deadline_s: float) -> Hang:
        is_all = len(behind) == len(self._hosts)
        behind = sorted(behind, key=lambda one: one.process)
        count = self._processes_per_host
        return Hang(tuple(behind), silent, deadline_s, is_all, processes_per_host=count)

    def _behind(self, process: int, since_s: float) -> StalledHost:
        host = self._hosts[process]
        return StalledHost(process, host.phase, host.step, self._watched_s - since_s)


class _Host:
    """The state of one host, from its events."""

    def __init__(self, limits: Limits, now_s: float) -> None:
        self._limits = limits
        self.phase, self.step = "start", 0
        self.in_loop = False
        """Whether it makes steps: waits for data between them are then part of a step."""
        self.beats = False
        """Whether it sends heartbeats, so that silence means something."""
        self.is_idle = False
        """Whether it did nothing in the time before its last heartbeat."""
        self._was_idle: bool | None = None
        """Whether any heartbeat since its last progress says so; None where none says anything."""
        self.last_event_s = self.moved_s = now_s
        names = limits.learned_floor_s
        self._times_s = {name: deque[float](maxlen=RECENT) for name in names}
        self._idle_times_s = {name: deque[float](maxlen=RECENT) for name in names}
        """Times without progress in which it was idle."""
        self._busy_times = dict.fromkeys(names, 0)
        """Number of times without progress in which it was busy."""
        self._unsorted = deque[tuple[str, float]](maxlen=RECENT)
        """Phases and times without progress since the last heartbeat: the next one sorts them."""

    @property
    def position(self) -> tuple[int, int]:
        """Step and phase, compared between hosts: the host with the lowest holds up the others."""
        known = self.phase if self.phase in PHASES else "train"
        return self.step, PHASES.index(known)

    def on_event(self, event: Event, now_s: float) -> None:
        self.last_event_s = now_s
        before = (self._timed, self.step)
        match event:
            case HeartbeatEvent():
                was_idle = _was_idle(event)
                self.beats, self.is_idle = True, bool(was_idle)
                if was_idle is not None:
                    self._was_idle = self._was_idle or was_idle
                    self._sort_times(was_idle)
                self._be(event.phase, event.step)
            case PhaseEvent(edge="begin"):
                self._be(event.name, None)
            case StepEvent():
                self._be("train", event.step)
            case _:
                pass
        writes = isinstance(event, SaveProgressEvent) and self.phase == "commit"
        if isinstance(event, PROGRESS) or writes or (self._timed, self.step) != before:
            self._learn(before[0], now_s - self.moved_s)
            self.moved_s, self._was_idle = now_s, None

    @property
    def silence_s(self) -> float:
        """Seconds for which it may be silent."""
        starts = self.phase == "start" or (self.phase == "train" and not self._times_s["train"])
        return self._limits.silence_in_start_s if starts else self._limits.silence_s

    def deadline_s(self, *, is_idle: bool) -> float:
        """Returns the seconds for which it may make no progress in its current phase."""
        limits, times_s = self._limits, self._times_s.get(self._timed, ())
        if len(times_s) < ENOUGH:
            return limits.phase_s.get(self._timed, limits.other_phases_s)
        floor_s, factor = limits.learned_floor_s[self._timed], limits.factor
        if is_idle:
            floor_s, factor = floor_s * limits.idle_floor, limits.idle_factor
            idle_times_s = self._idle_times_s[self._timed]
            if len(idle_times_s) >= ENOUGH:
                times_s = idle_times_s
            elif self._busy_times[self._timed] >= ENOUGH:
                factor = limits.never_idle_factor
        return max(floor_s, factor * _quantile(times_s))

    @property
    def key(self) -> str:
        """The key of the job's `deadlines` that raises its limit."""
        return KEYS.get(self._timed, "step_s")

    @property
    def _timed(self) -> str:
        """The phase whose deadline applies: a wait for the next batch is part of a step."""
        return "train" if self.in_loop and self.phase == "data" else self.phase

    def _learn(self, phase: str, took_s: float) -> None:
        if phase not in self._times_s:
            return
        self._times_s[phase].append(took_s)
        self._unsorted.append((phase, took_s))
        if self._was_idle is not None:
            self._sort_times(self._was_idle)

    def _sort_times(self, was_idle: bool) -> None:
        """Takes the times since the last heartbeat as those of an idle or of a busy host."""
        for phase, took_s in self._unsorted:
            if was_idle:
                self._idle_times_s[phase].append(took_s)
            else:
                self._busy_times[phase] += 1
        self._unsorted.clear()

    def _be(self, phase: str | None, step: int | None) -> None:
        """Sets phase and step, if known."""
        if phase is not None:
            self.phase = phase
            self.in_loop = self.in_loop or phase == "train"
        if step is not None:
            self.step = max(self.step, step)


def _was_idle(event: HeartbeatEvent) -> bool | None:
    """Returns whether a program slept although it could have had a processor.

    None if it lacked a processor, and where the heartbeat says nothing of it.
    """
    if event.busy_share is None or event.cpu_probe_s is None:
        return None
    if event.busy_share >= IDLE_SHARE:
        return False
    return True if event.cpu_probe_s < IDLE_PROBE_S else None


def _quantile(times_s: Collection[float], share: float = 0.95) -> float:
    """Returns the least time that at least `share` of the times do not exceed (nearest rank)."""
    return sorted(times_s)[math.ceil(share * len(times_s)) - 1]
