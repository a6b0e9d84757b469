"""The current phase of each host, from its events; and which of these events a run keeps."""

from trainer.contract.protocol.events import (
    CompiledEvent,
    Event,
    FinishedEvent,
    HeartbeatEvent,
    PhaseEvent,
    SaveProgressEvent,
    StepEvent,
    UnknownEvent,
)

OF_PROCESS_0_ONLY = (PhaseEvent.kind, StepEvent.kind, CompiledEvent.kind)
LIVE_ONLY = (HeartbeatEvent.kind, SaveProgressEvent.kind)


def is_kept(event: Event) -> bool:
    """Returns whether events.jsonl keeps an event.

    The file's size must not grow with the number of hosts. Heartbeats and the progress of saves are
    left out. All hosts take the same steps and phases, so only those of process 0 are kept.
    """
    # One that lacks a required field counts, too: every host of a program may send it.
    name = event.event if isinstance(event, UnknownEvent) else event.kind
    return name not in LIVE_ONLY and not (name in OF_PROCESS_0_ONLY and event.process)


class HostPhases:
    """The phase of each process of the last attempt."""

    def __init__(self) -> None:
        self.by_process: dict[int, str] = {}
        self._attempt = 0

    def add(self, event: Event) -> None:
        """Adds one event; ignores events that say nothing about a phase."""
        if event.attempt is not None and event.attempt > self._attempt:
            self._attempt, self.by_process = event.attempt, {}
        if event.process is None:
            return
        match event:
            case PhaseEvent(edge="begin"):
                self.by_process[event.process] = event.name
            case HeartbeatEvent():
                self.by_process[event.process] = event.phase or "start"
            case FinishedEvent():
                self.by_process[event.process] = "finished"
            case _:
                pass
