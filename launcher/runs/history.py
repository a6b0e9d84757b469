"""The history of a run, from events.jsonl: its ends, hangs and saves. Pure."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.core.events import (
    AttemptEndedEvent,
    DisplayOffEvent,
    HangEvent,
    HostExcludedEvent,
    StateEvent,
    StragglerEvent,
)
from launcher.core.formatting import format_seconds
from launcher.core.states import EndReason
from trainer.contract.protocol.events import (
    CheckpointSavedEvent,
    CheckpointsDiscardedEvent,
    EvalEvent,
    Event,
    RestoredEvent,
    SaveFailedEvent,
    SpikeEvent,
    WrongHostEvent,
)

SHOWN = {
    AttemptEndedEvent, HangEvent, StragglerEvent, StateEvent, SaveFailedEvent, DisplayOffEvent,
    RestoredEvent, CheckpointSavedEvent, CheckpointsDiscardedEvent, HostExcludedEvent, SpikeEvent,
    WrongHostEvent, EvalEvent,
}  # fmt: skip
"""Types of the events that the history is made of."""


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


@dataclass(frozen=True, kw_only=True)
class LastEvaluation:
    """The newest evaluation of a run. What was not evaluated is None or empty."""

    step: int | None
    """The step after which it ran."""
    loss: float | None
    """Mean cross-entropy per target, or DPO loss per pair, on held-out data, in nats."""
    losses: Mapping[str, float]
    """Loss of each source of a mixture, by its name, in nats."""
    accuracy: float | None
    """Share of the multiple-choice questions that are answered correctly, from 0 to 1."""
    tasks: Mapping[str, float]
    """Metrics of `eval.tasks`: name of the task, a slash, and name of the metric -> its value."""

    @classmethod
    def of(cls, event: EvalEvent) -> "LastEvaluation":
        """Returns the evaluation that an event reports."""
        return cls(
            step=event.step,
            loss=event.eval_loss,
            losses=event.eval_losses or {},
            accuracy=event.accuracy,
            tasks=event.tasks or {},
        )

    def __str__(self) -> str:
        parts = [
            f"step {self.step}",
            "" if self.loss is None else f"loss {self.loss:.4f}",
            "" if self.accuracy is None else f"accuracy {self.accuracy:.1%}",
            *(f"{name} {value:.4g}" for name, value in self.tasks.items()),
        ]
        return ", ".join(filter(None, parts))


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

    entries: list[HistoryEntry] = field(default_factory=list)
    checkpoint: LastCheckpoint | None = None
    evaluation: LastEvaluation | None = None

    def add(self, event: Event) -> None:
        """Adds one event; ignores most types of events."""
        if type(event) not in SHOWN:
            return  # one of the millions of steps
        if isinstance(event, CheckpointSavedEvent):
            self.checkpoint = LastCheckpoint(event.step, _time(event))
        elif isinstance(event, EvalEvent):
            self.evaluation = LastEvaluation.of(event)
        elif isinstance(event, RestoredEvent):
            self._on_restored(event.step)
        elif isinstance(event, CheckpointsDiscardedEvent):
            self.checkpoint = LastCheckpoint(event.newest, None) if event.newest else None
        if text := _text(event):
            self.entries.append(HistoryEntry(_time(event), event.attempt, text))

    def _on_restored(self, step: int) -> None:
        """Records the restored step, which is older than the last save if that was damaged."""
        if self.checkpoint is None or self.checkpoint.step != step:
            self.checkpoint = LastCheckpoint(step, None)


def _text(event: Event) -> str:
    """Returns an event as a line for the user; "" when it is not worth one."""
    match event:
        case AttemptEndedEvent():
            return _end_text(event)
        case HangEvent():
            return _sentence("hang", event.reason)
        case StragglerEvent():
            return event.message or f"host {event.process} is slow"
        case HostExcludedEvent():
            return str(event)
        case StateEvent() if event.state.is_waiting:
            return _sentence(event.state.replace("_", " "), event.reason)
        case SpikeEvent():
            return _spike_text(event)
        case WrongHostEvent():
            return _sentence("check of hosts", event.message)
        case SaveFailedEvent():
            return _sentence(f"saving step {event.step} failed", event.message)
        case DisplayOffEvent():
            return _sentence("the display was switched off", event.reason)
        case RestoredEvent():
            return event.message or f"restored step {event.step}"
        case _:
            return ""


def _spike_text(event: SpikeEvent) -> str:
    pairs = (
        ("loss", event.loss, event.loss_limit),
        ("gradient norm", event.grad_norm, event.grad_norm_limit),
    )
    values = [
        f"{name} {value:.4g}" + (f" (limit {limit:.4g})" if limit is not None else "")
        if value is not None
        else f"{name} not finite"
        for name, value, limit in pairs
    ]
    return f"spike at step {event.step}, {event.action or 'reported'}: {', '.join(values)}"


def _end_text(event: AttemptEndedEvent) -> str:
    why = event.end_reason
    if why is EndReason.HANG:  # the hang's own event has the reason
        what = why.value
    else:
        what = event.reason if why.is_orderly else _sentence(why, event.reason)
    return _sentence("ended" + (f" at step {event.step}" if event.step else ""), what)


def _sentence(what: str, why: str | None) -> str:
    return f"{what}: {why}" if why else what


def _time(event: Event) -> float:
    """Returns the time by the launcher's clock if recorded: a host's clock may be wrong."""
    return float(event.received or event.time or 0.0)
