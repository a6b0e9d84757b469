"""What a queue does next: a pure function of its entries and of the states of their runs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto

from launcher.queue.entries import Entry, waiting
from launcher.queue.shares import Shares, hosts_given, hosts_of_cluster, shares_of, shares_with

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
    """Has finished, failed, used up its budget or was cancelled, or its folder is gone."""


@dataclass(frozen=True)
class RunView:
    """What the folder of a run shows."""

    phase: RunPhase
    hosts: int | None = None
    """Number of hosts of an active run's attempt. None before the run begins one, also while it
    waits for other runs: nothing answers a request then."""


@dataclass(frozen=True)
class Action:
    """What a queue does to one entry."""

    entry: Entry


@dataclass(frozen=True)
class Start(Action):
    """Starts or resumes the run."""

    hosts: int | None = None
    """Most hosts that the run may use; None for all of them."""


@dataclass(frozen=True)
class Resize(Action):
    """Requests an elastic run to go on with at most `hosts` hosts."""

    hosts: int


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
    view_of: Callable[[Entry], RunView],
    is_free: Callable[[], bool],
    now: float,
) -> Action | None:
    """Returns the next action; None when there is nothing to do until a run changes.

    `is_free` returns whether no run outside of the queue uses the cluster; `now` is in seconds
    since the epoch. Both functions are called only as far as they are needed.
    """
    started = [entry for entry in entries if entry.is_started]
    views = {entry: view_of(entry) for entry in started}
    for entry, view in views.items():
        if action := _of_started(entry, view.phase):
            return action
    following = waiting(entries)
    head = following[0] if following else None
    if head is None:
        return _share(views, None, shares_of(started))
    match view_of(head).phase:
        case RunPhase.BEGINNING | RunPhase.ACTIVE:
            return Adopt(head)
        case RunPhase.STOPPED | RunPhase.ENDED:
            return Remove(head)
    shares = shares_with(started, head)
    if shares and is_free():
        return _share(views, head, shares)
    if not shares and (victims := _preempted(started, head)) and is_free():
        return _preemption(victims, views, now)
    return _share(views, None, shares_of(started))


def _of_started(entry: Entry, phase: RunPhase) -> Action | None:
    match phase:
        case RunPhase.WAITING | RunPhase.STOPPED if entry.stop_requested is not None:
            return Requeue(entry)
        case RunPhase.WAITING:  # an earlier worker ended before the run began
            return Start(entry, entry.hosts)
        case RunPhase.STOPPED | RunPhase.ENDED:
            return Remove(entry)
    return None


def _share(views: dict[Entry, RunView], head: Entry | None, shares: Shares | None) -> Action | None:
    """Returns the next action towards `shares`: runs shrink before others grow or start.

    `head` is a waiting run that has a share.
    """
    if shares is None:
        return None
    used = {entry: max(hosts_given(entry), view.hosts or 0) for entry, view in views.items()}
    free = hosts_of_cluster([*shares]) - sum(used.values())
    for entry, view in views.items():
        more = shares[entry] - hosts_given(entry)
        is_ready = entry.is_elastic and view.hosts is not None
        if is_ready and entry.stop_requested is None and (more < 0 or 0 < more <= free):
            return Resize(entry, shares[entry])
    if head and shares[head] <= free:
        return Start(head, shares[head] if head.sizes else None)
    return None


def _preempted(started: Sequence[Entry], head: Entry) -> list[Entry]:
    """Returns the runs whose stop gives the first waiting entry a place; none if it waits anyway.

    The lowest priority stops first, then the latest entry. None stops whose place is not needed.
    """

    def is_enough(stopped: Sequence[Entry]) -> bool:
        return shares_with([run for run in started if run not in stopped], head) is not None

    lower = [run for run in started if run.is_preemptible and run.priority < head.priority]
    lower.sort(key=lambda run: run.rank, reverse=True)
    victims = next((lower[:n] for n in range(1, len(lower) + 1) if is_enough(lower[:n])), [])
    for run in [*victims]:
        others = [one for one in victims if one is not run]
        victims = others if is_enough(others) else victims
    return victims


def _preemption(victims: Sequence[Entry], views: dict[Entry, RunView], now: float) -> Action | None:
    """Returns the next request to stop, if one is due."""
    for entry in victims:
        is_due = entry.stop_requested is None or (
            now > entry.stop_requested + entry.grace_s + REPEAT_S
        )
        if is_due and views[entry].phase is RunPhase.ACTIVE:
            return Preempt(entry)
    return None
