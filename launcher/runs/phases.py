"""The current phase of each host, from its events; and which of these events a run keeps."""

from collections.abc import Mapping
from typing import Any

OF_PROCESS_0_ONLY = ("phase", "step")
LIVE_ONLY = ("heartbeat", "save_progress")


def is_kept(event: Mapping[str, Any]) -> bool:
    """Returns whether events.jsonl keeps an event.

    The file's size must not grow with the number of hosts. Heartbeats and the progress of saves are
    left out. All hosts take the same steps and phases, so only those of process 0 are kept.
    """
    name = event.get("event")
    return name not in LIVE_ONLY and (
        name not in OF_PROCESS_0_ONLY or event.get("process", 0) == 0
    )  # fmt: skip


class HostPhases:
    """The phase of each process of the last attempt."""

    def __init__(self) -> None:
        self.by_process: dict[int, str] = {}
        self._attempt = 0

    def add(self, event: Mapping[str, Any]) -> None:
        """Adds one event; ignores events that it does not know."""
        attempt, process = event.get("attempt"), event.get("process")
        if isinstance(attempt, int) and attempt > self._attempt:
            self._attempt, self.by_process = attempt, {}
        if not isinstance(process, int):
            return
        match event:
            case {"event": "phase", "edge": "begin", "name": str(name)}:
                self.by_process[process] = name
            case {"event": "heartbeat"}:
                phase = event.get("phase")
                self.by_process[process] = phase if isinstance(phase, str) else "start"
            case {"event": "finished"}:
                self.by_process[process] = "finished"
