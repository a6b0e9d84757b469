"""What a queue does next: a pure function of its entries and of the states of their runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from launcher.queue.entries import Entry, waiting

REPEAT_S = 60.0
"""Seconds beyond its grace period after which a run is requested to stop again."""


class RunPhase(Enum):
    """How far the run of an entry is."""

    WAITING = auto()
    """Has not begun, or waits to be resumed."""
    BEGINNING = auto()
    """A process has the run, and has not recorded an attempt yet."""
    ACTIVE = auto()
    STOPPED = auto()
    """Has ended and can be resumed: it was stopped, or its process ended without a result."""
    ENDED = auto()
    """Has finished, failed or used up its budget, or its folder is gone."""


@dataclass(frozen=True)
class Action:
    """What a queue does to one entry."""

    entry: Entry


class Start(Action):
    """Starts or resumes the run."""


class Adopt(Action):
    """Records that another command has started the run."""


class Preempt(Action):
    """Requests the run to save and stop."""


class Requeue(Action):
    """Puts a run that has stopped for another one back into the queue."""


class Remove(Action):
    """Removes the entry of a run that has ended."""


def next_action(
    entries: Sequence[Entry],
    phase_of: Callable[[Entry], RunPhase],
    is_free: Callable[[], bool],
    now: float,
) -> Action | None:
    """Returns the next action; None when there is nothing to do until a run changes.

    `is_free` returns whether no run outside of the queue uses the cluster; `now` is in seconds
    since the epoch. Both functions are called only as far as they are needed.
    """
    started = [entry for entry in entries if entry.is_started]
    for entry in started:
        if action := _of_started(entry, phase_of(entry)):
            return action
    following = waiting(entries)
    if not following:
        return None
    head = following[0]
    match phase_of(head):
        case RunPhase.BEGINNING | RunPhase.ACTIVE:
            return Adopt(head)
        case RunPhase.STOPPED | RunPhase.ENDED:
            return Remove(head)
    if not started:
        return Start(head) if is_free() else None
    return _preemption(started, head, phase_of, now)


def _of_started(entry: Entry, phase: RunPhase) -> Action | None:
    match phase:
        case RunPhase.WAITING | RunPhase.STOPPED if entry.stop_requested is not None:
            return Requeue(entry)
        case RunPhase.WAITING:  # an earlier worker ended before the run began
            return Start(entry)
        case RunPhase.STOPPED | RunPhase.ENDED:
            return Remove(entry)
    return None


def _preemption(
    started: Sequence[Entry], head: Entry, phase_of: Callable[[Entry], RunPhase], now: float
) -> Action | None:
    """Returns the request to stop that gives the first waiting entry a place, if there is one.

    No entry gets a place while a run stays that it cannot preempt.
    """
    if not all(entry.is_preemptible and entry.priority < head.priority for entry in started):
        return None
    for entry in started:
        is_due = entry.stop_requested is None or (
            now > entry.stop_requested + entry.grace_s + REPEAT_S
        )
        if is_due and phase_of(entry) is RunPhase.ACTIVE:
            return Preempt(entry)
    return None
