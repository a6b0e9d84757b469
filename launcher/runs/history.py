"""The history of a run, from events.jsonl: its ends, hangs and saves. Pure."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from launcher.core.formatting import format_seconds

Event = Mapping[str, Any]
IN_ORDER = ("finished", "stopped", "resized")
WAITING = ("backing_off", "waiting_for_hosts")


@dataclass(frozen=True)
class LastCheckpoint:
    """The newest checkpoint that a run could resume from."""

    step: int
    time: float | None
    """Time of the save, in seconds since the epoch; None when unknown."""

    def __str__(self) -> str:
        if self.time is None:
            return f"step {self.step}"
        return f"step {self.step}, {format_seconds(max(0.0, time.time() - self.time))} ago"


@dataclass(frozen=True)
class HistoryEntry:
    """An event that a user may have missed while away from the run."""

    time: float
    """Seconds since the epoch."""
    attempt: int | None
    text: str


@dataclass
class History:
    """The history of a run, built from its events in order."""

    happenings: list[HistoryEntry] = field(default_factory=list)
    checkpoint: LastCheckpoint | None = None

    def add(self, event: Event) -> None:
        """Adds one event; ignores events that it does not know."""
        attempt, name, step = event.get("attempt"), event.get("event"), event.get("step")
        if name == "checkpoint_saved" and isinstance(step, int):
            self.checkpoint = LastCheckpoint(step, _time(event))
        elif name == "restored" and isinstance(step, int):
            self._on_restored(step)
        if text := _text(event):
            self.happenings.append(HistoryEntry(_time(event), attempt, text))

    def _on_restored(self, step: int) -> None:
        """Records the restored step, which is older than the last save if that was damaged."""
        if self.checkpoint is None or self.checkpoint.step != step:
            self.checkpoint = LastCheckpoint(step, None)


def _text(event: Event) -> str:
    """Returns an event as a line for the user; "" when it is not worth one."""
    step, reason = event.get("step"), event.get("reason") or event.get("message") or ""
    match event.get("event"):
        case "attempt_ended":
            kind = event.get("kind")
            detail = "" if kind == "hang" else reason  # the hang's own event has the reason
            what = reason if kind in IN_ORDER else _sentence(str(kind), detail)
            return _sentence("ended" + (f" at step {step}" if step else ""), what)
        case "hang":
            return _sentence("hang", reason)
        case "straggler":
            return reason or f"host {event.get('process')} is slow"
        case "state" if event.get("state") in WAITING:
            return _sentence(str(event["state"]).replace("_", " "), reason)
        case "save_failed":
            return _sentence(f"saving step {step} failed", reason)
        case "display_off":
            return _sentence("the display was switched off", reason)
        case "restored":
            return reason or f"restored step {step}"
    return ""


def _sentence(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def _time(event: Event) -> float:
    """Returns the time by the launcher's clock if recorded: a host's clock may be wrong."""
    return float(event.get("received") or event.get("time") or 0.0)
