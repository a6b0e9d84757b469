"""Which events of a run are notified, and what a notification says. Pure."""

import uuid
from dataclasses import asdict, dataclass
from typing import Any

from launcher.core.events import AttemptEndedEvent, HangEvent, StateEvent, StragglerEvent
from launcher.core.states import RunState
from trainer.contract.config.notify import NotifyEvent
from trainer.contract.protocol.events import (
    CheckpointSavedEvent,
    CheckpointsDiscardedEvent,
    Event,
    RestoredEvent,
    StepEvent,
)

TITLES: dict[NotifyEvent, str] = {
    "finished": "{} has finished",
    "failed": "{} has failed",
    "cancelled": "{} was cancelled",
    "lost": "{} was lost",
    "resumed": "{} continues",
    "hang": "{} hangs",
    "straggler": "{} has a slow host",
    "budget": "{} has used up its budget",
}
ENDS: dict[RunState, NotifyEvent] = {
    RunState.FINISHED: "finished",
    RunState.FAILED: "failed",
    RunState.CANCELLED: "cancelled",
    RunState.LOST: "lost",
    RunState.OVER_BUDGET: "budget",
}
"""Events by the state in which a run ends. Stops by the user are not notified."""


@dataclass(frozen=True, kw_only=True)
class Notice:
    """One event of a run, as it is sent."""

    id: str
    """The same for all tries and all targets, so that a receiver can drop a repetition."""
    event: NotifyEvent
    run: str
    folder: str
    cluster: str
    time: float
    """Seconds since the epoch."""
    attempt: int | None
    step: int | None
    """Last completed step."""
    steps: int | None
    """Number of steps of the run."""
    loss: float | None
    checkpoint: int | None
    """Step of the last checkpoint."""
    message: str
    """The reason or the circumstances, in a sentence."""

    @property
    def title(self) -> str:
        """The event in a few words: "quickstart has finished"."""
        return TITLES[self.event].format(self.run)

    @property
    def text(self) -> str:
        """The event in a sentence or two."""
        return f"{self.title}: {self.message}"

    def as_json(self) -> dict[str, Any]:
        return asdict(self) | {"title": self.title}


@dataclass
class RunProgress:
    """The position of a run, from its events, and the notices that follow from them."""

    run: str
    folder: str
    cluster: str
    steps: int | None
    step: int | None = None
    loss: float | None = None
    checkpoint: int | None = None
    last_end: str = ""
    """Why the previous attempt of this command ended; "" in its first attempt."""

    def notice_of(self, event: Event) -> Notice | None:
        """Adds an event; returns its notice, or None for an event without one."""
        match event:
            case StepEvent():
                if not event.process:
                    self.step, self.loss = event.step, event.loss
            case CheckpointSavedEvent() | RestoredEvent():
                self.checkpoint = event.step
            case CheckpointsDiscardedEvent():
                self.checkpoint = event.newest
            case AttemptEndedEvent():
                self.last_end = event.reason
            case HangEvent():
                return self.notice("hang", event, event.reason)
            case StragglerEvent():
                return self.notice("straggler", event, event.message)
            case StateEvent(state=RunState.RUNNING) if (event.attempt or 1) > 1:
                return self.notice("resumed", event, self._resumed(event.attempt))
            case StateEvent() if kind := ENDS.get(event.state):
                return self.notice(kind, event, event.reason or self._position())
            case _:
                pass
        return None

    def notice(self, kind: NotifyEvent, event: Event, message: str) -> Notice:
        """Returns the notice of an event at the current position."""
        return Notice(
            id=uuid.uuid4().hex,
            event=kind,
            run=self.run,
            folder=self.folder,
            cluster=self.cluster,
            time=event.time or 0.0,
            attempt=event.attempt,
            step=self.step,
            steps=self.steps,
            loss=self.loss,
            checkpoint=self.checkpoint,
            message=message,
        )

    def _resumed(self, attempt: int | None) -> str:
        why = self.last_end or "resumed by a command"
        return f"attempt {attempt} has started ({why})"

    def _position(self) -> str:
        if self.step is None:
            return "its program has ended in order"
        of = f" of {self.steps}" if self.steps else ""
        loss = "" if self.loss is None else f", loss {self.loss:.4f}"
        return f"step {self.step}{of}{loss}"
