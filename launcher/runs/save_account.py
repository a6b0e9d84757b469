"""What a run's events say about its saves and faults, for `checkpoint.every_minutes: auto`.

Faults are the ends of attempts that lost steps: crashes, hangs, lost hosts, preemptions without a
save, and a launcher process that was lost. A fault whose next attempt continued from the memory of
the hosts does not count, because no checkpoint in storage had to serve it. Time counts from the
connection of the processes to the end of the attempt.
"""

from dataclasses import dataclass

from launcher.core.events import AttemptEndedEvent, CommandStartedEvent
from launcher.core.states import EndReason
from launcher.runs.timeline import driver_time
from trainer.contract.planning.save_interval import SaveInterval, SaveStatistics
from trainer.contract.protocol.events import (
    CheckpointIntervalEvent,
    CheckpointSavedEvent,
    CheckpointsDiscardedEvent,
    Event,
    InitializedEvent,
    RestoredEvent,
)

FAULTS = (EndReason.CRASH, EndReason.HANG, EndReason.LOST)
"""Ends that always lose steps; a preemption does only when the program did not save."""


@dataclass
class SaveAccount:
    """Counts a run's faults and the time in which its hosts could have had them."""

    faults: int = 0
    is_last_open: bool = False
    """Whether the last attempt ended by a fault, and no other has restored a state since."""
    host_s: float = 0.0
    """Hosts times seconds, up to `since` while an attempt runs."""
    hosts: int = 0
    """Processes of the running attempt; 0 when none runs."""
    since: float = 0.0
    latest: float = 0.0
    """Time of the last event, in seconds since the epoch."""
    saved: int = 0
    """Step of the newest checkpoint."""
    interval: SaveInterval | None = None
    """The interval that the run has reported last."""

    def add(self, event: Event) -> None:
        """Adds one event. Events come in the order in which they were written."""
        if isinstance(event, CommandStartedEvent) and self.hosts:
            self._end(self.latest, is_fault=True)
        self.latest = max(self.latest, driver_time(event) or 0.0)
        match event:
            case InitializedEvent() if not event.process:
                self.hosts, self.since = max(1, event.hosts or event.processes or 1), self.latest
            case AttemptEndedEvent():
                self._end(self.latest, is_fault=self._is_fault(event))
            case CheckpointSavedEvent():
                self.saved = event.step
            case CheckpointsDiscardedEvent():
                self.saved = event.newest or 0
            case RestoredEvent():
                self._restored(event)
            case CheckpointIntervalEvent():
                self.interval = _interval(event)
            case _:
                pass

    def statistics(self, planned: SaveStatistics) -> SaveStatistics:
        """Returns what is known for the next attempt. `planned` has the assumed cost of a save."""
        known = self.interval if self.interval and self.interval.saves else planned
        return SaveStatistics(
            faults=self.faults,
            follows_fault=self.is_last_open,
            host_s=self.host_s,
            blocked_s=known.blocked_s,
            slowed_s=known.slowed_s,
            saves=known.saves,
        )

    def _end(self, time: float, *, is_fault: bool) -> None:
        self.host_s += self.hosts * max(0.0, time - self.since)
        self.hosts = 0
        self.faults += is_fault
        self.is_last_open = is_fault

    def _restored(self, event: RestoredEvent) -> None:
        if self.is_last_open and event.source in ("memory", "neighbor"):
            self.faults -= 1
        self.is_last_open = False
        self.saved = event.step

    def _is_fault(self, event: AttemptEndedEvent) -> bool:
        if event.end_reason is EndReason.PREEMPTED:
            return event.step is None or event.step > self.saved
        return event.end_reason in FAULTS


def _interval(event: CheckpointIntervalEvent) -> SaveInterval:
    return SaveInterval(
        seconds=event.seconds,
        cost_s=event.cost_s,
        blocked_s=event.blocked_s,
        slowed_s=event.slowed_s,
        saves=event.saves,
        mtbf_s=event.mtbf_s,
        faults=event.faults,
    )
