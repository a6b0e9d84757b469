"""The timings of an earlier run, from its events. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from statistics import fmean

from launcher.core.events import AttemptEndedEvent, AttemptStartedEvent
from launcher.core.states import EndReason
from launcher.rehearsal.timings import Timings
from launcher.runs.timeline import driver_time
from trainer.contract.protocol.events import CheckpointSavedEvent, Event, PhaseEvent, StepEvent

AWAY = ("save", "commit", "evaluate", "sample")
"""Phases between steps whose time belongs to no step."""
WAITED_S = 0.5
"""Seconds between two attempts from which on the run has waited for a host."""


@dataclass
class _Attempt:
    """When the parts of one attempt began and ended, in seconds since the epoch."""

    began_s: float
    trained_s: float | None = None
    first_step_s: float | None = None
    last_step_s: float | None = None
    saved_s: float = 0.0
    ended_s: float | None = None
    end_reason: EndReason | None = None
    restore_s: float = 0.0
    steps_s: list[float] = field(default_factory=list[float])
    away_s: float = 0.0
    """Seconds since the last step in phases that belong to no step."""
    began_phase_s: dict[str, float] = field(default_factory=dict[str, float])

    def on_step(self, time_s: float) -> None:
        if self.last_step_s is not None:
            self.steps_s.append(max(0.0, time_s - self.last_step_s - self.away_s))
        self.first_step_s = self.first_step_s or time_s
        self.last_step_s, self.away_s = time_s, 0.0

    def on_phase(self, event: PhaseEvent, time_s: float) -> None:
        if event.edge == "begin":
            self.began_phase_s[event.name] = time_s
            if event.name == "train":
                self.trained_s = time_s
        elif event.name in self.began_phase_s:
            took_s = time_s - self.began_phase_s.pop(event.name)
            self.restore_s += took_s if event.name == "restore" else 0.0
            self.away_s += took_s if event.name in AWAY else 0.0

    @property
    def start_s(self) -> float | None:
        """Seconds from its begin to its training, the restore excluded; None when it got less far.

        A program without phases trains from its first step on.
        """
        trained_s = self.trained_s or self.first_step_s
        return None if trained_s is None else trained_s - self.began_s - self.restore_s

    @property
    def ran_s(self) -> float:
        """Seconds from its first step to its end."""
        if self.first_step_s is None or self.ended_s is None:
            return 0.0
        return self.ended_s - self.first_step_s


def timings_of(
    events: Iterable[Event], defaults: Timings, standby_after_s: float | None
) -> Timings | None:
    """Returns the mean timings of a run; None when it made too few steps.

    `defaults` has those that the run does not show, such as the loss of a host. `standby_after_s`:
    the key of its job's `retries`.
    """
    attempts, saves = _read(events)
    steps_s = [seconds for attempt in attempts for seconds in attempt.steps_s]
    if not steps_s:
        return None
    step_s = fmean(steps_s)
    found: dict[str, list[float]] = {
        **_starts(attempts, standby_after_s),
        **_ends(attempts, step_s),
        "restore_s": [one.restore_s for one in attempts if one.restore_s],
        "first_step_s": [
            max(0.0, one.first_step_s - one.trained_s - step_s)
            for one in attempts
            if one.first_step_s is not None and one.trained_s is not None
        ],
        "save_s": [save.seconds for save in saves if save.seconds is not None],
        "save_blocked_s": [save.blocked_s for save in saves if save.blocked_s is not None],
    }
    means = {name: fmean(values) for name, values in found.items() if values}
    return replace(defaults, step_s=step_s, **means)


def _read(events: Iterable[Event]) -> tuple[list[_Attempt], list[CheckpointSavedEvent]]:
    attempts: list[_Attempt] = []
    saves: list[CheckpointSavedEvent] = []
    for event in events:
        time_s = driver_time(event)
        if time_s is None:
            continue
        if isinstance(event, AttemptStartedEvent):
            attempts.append(_Attempt(time_s))
        if attempts and isinstance(event, AttemptEndedEvent):
            attempts[-1].ended_s, attempts[-1].end_reason = time_s, event.end_reason
        if not attempts or event.process:
            continue
        match event:
            case StepEvent():
                attempts[-1].on_step(time_s)
            case PhaseEvent():
                attempts[-1].on_phase(event, time_s)
            case CheckpointSavedEvent():
                attempts[-1].saved_s = time_s
                saves.append(event)
            case _:
                pass
    return attempts, saves


def _starts(attempts: list[_Attempt], standby_after_s: float | None) -> Mapping[str, list[float]]:
    """Returns the seconds of starts, by the field of `Timings`."""
    starts: dict[str, list[float]] = {
        "first_start_s": [], "restart_s": [], "cold_restart_s": [], "agent_start_s": [],
    }  # fmt: skip
    after_loss: list[float] = []
    before: _Attempt | None = None
    for attempt in attempts:
        start_s = attempt.start_s
        if start_s is None:
            pass
        elif before is None:
            starts["first_start_s"].append(start_s)
        elif before.end_reason is not None and before.end_reason.is_loss:
            after_loss.append(start_s)
        else:
            is_ready = standby_after_s is not None and before.ran_s >= standby_after_s
            starts["restart_s" if is_ready else "cold_restart_s"].append(start_s)
        before = attempt
    others = starts["restart_s"] or starts["cold_restart_s"]
    if after_loss and others:
        starts["agent_start_s"] = [max(0.0, fmean(after_loss) - fmean(others))]
        starts["check_s"] = [0.0]  # part of the former
    return starts


def _ends(attempts: list[_Attempt], step_s: float) -> Mapping[str, list[float]]:
    """Returns the seconds of ends, by the field of `Timings`.

    A fault hits in the middle of a step on average.
    """
    ends: dict[str, list[float]] = {
        "crash_end_s": [], "loss_end_s": [], "stop_s": [], "replacement_s": [],
    }  # fmt: skip
    for attempt, following in zip(attempts, [*attempts[1:], None], strict=True):
        if attempt.ended_s is None or attempt.last_step_s is None:
            continue
        since_s = attempt.ended_s - attempt.last_step_s - step_s / 2
        if attempt.end_reason is EndReason.CRASH:
            ends["crash_end_s"].append(max(0.0, since_s))
        elif attempt.end_reason is EndReason.LOST:
            ends["loss_end_s"].append(max(0.0, since_s))
            if following is not None and (gap_s := following.began_s - attempt.ended_s) > WAITED_S:
                ends["replacement_s"].append(max(0.0, since_s) + gap_s)
        elif attempt.end_reason is EndReason.FINISHED:
            last_s = max(attempt.last_step_s, attempt.saved_s)
            ends["stop_s"].append(max(0.0, attempt.ended_s - last_s))
    return ends
