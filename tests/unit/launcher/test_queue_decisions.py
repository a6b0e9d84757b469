"""What a queue does next, held against a simulated cluster: the order, and that nothing is lost."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.queue.decisions import (
    REPEAT_S,
    Adopt,
    Preempt,
    Remove,
    Requeue,
    RunPhase,
    RunView,
    Start,
    next_action,
)
from launcher.queue.entries import Entry, waiting

GRACE_S = 10.0


def entry(name: str = "a", *, priority: int = 0, entered: float = 0.0, **fields: bool) -> Entry:
    return Entry(
        folder=Path("/runs") / name,
        priority=priority,
        is_preemptible=fields.get("is_preemptible", False),
        grace_s=GRACE_S,
        entered=entered,
        is_started=fields.get("is_started", False),
    )


def action_for(*entries: Entry, is_free: bool = True, now: float = 0.0, **phases: RunPhase):
    def view_of(entry: Entry) -> RunView:
        return RunView(phases.get(entry.folder.name, RunPhase.WAITING))

    return next_action(entries, view_of, lambda: is_free, now)


PRIORITIES = st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=12)


@given(PRIORITIES)
def test_entries_wait_by_priority_and_then_by_time(given: list[tuple[int, bool]]) -> None:
    entries = [entry(str(n), priority=p, entered=n) for n, (p, _) in enumerate(given)]
    order = [int(one.folder.name) for one in waiting(reversed(entries))]
    assert order == sorted(range(len(given)), key=lambda n: (-given[n][0], n))


@dataclass
class Cluster:
    """One cluster with a queue. A run takes some turns; one that stops keeps what it has done."""

    entries: dict[Path, Entry] = field(default_factory=dict)
    left: dict[Path, int] = field(default_factory=dict)
    phases: dict[Path, RunPhase] = field(default_factory=dict)
    begun: list[Path] = field(default_factory=list)
    """Each run whenever it began or was resumed."""

    def add(self, new: Entry, turns: int) -> None:
        self.entries[new.folder] = new
        self.left[new.folder], self.phases[new.folder] = turns, RunPhase.WAITING

    def turn(self) -> None:
        """Carries out all actions, then lets the active run work."""
        entries = self.entries
        while action := next_action(
            list(entries.values()), lambda one: RunView(self.phases[one.folder]), lambda: True, 0.0
        ):
            one, folder = action.entry, action.entry.folder
            match action:
                case Start():
                    assert RunPhase.ACTIVE not in self.phases.values()
                    entries[folder] = replace(one, is_started=True, stop_requested=None)
                    self.phases[folder] = RunPhase.ACTIVE
                    self.begun.append(folder)
                case Preempt():
                    assert one.is_preemptible
                    entries[folder] = replace(one, stop_requested=0.0)
                    self.phases[folder] = RunPhase.STOPPED
                case Requeue():
                    entries[folder] = replace(one, is_started=False, stop_requested=None)
                    self.phases[folder] = RunPhase.WAITING
                case Remove():
                    del entries[folder]
        for folder, phase in self.phases.items():
            if phase is RunPhase.ACTIVE:
                self.left[folder] -= 1
                if self.left[folder] == 0:
                    self.phases[folder] = RunPhase.ENDED


@given(PRIORITIES, st.integers(1, 3))
def test_runs_of_one_moment_begin_once_and_in_order(
    given: list[tuple[int, bool]], turns: int
) -> None:
    cluster = Cluster()
    for number, (priority, is_preemptible) in enumerate(given):
        new = entry(str(number), priority=priority, entered=number, is_preemptible=is_preemptible)
        cluster.add(new, turns)
    expected = [one.folder for one in waiting(cluster.entries.values())]
    for _ in range(turns * len(given) + 1):
        cluster.turn()
    assert cluster.begun == expected
    assert cluster.entries == {}


@given(PRIORITIES, st.integers(1, 3), st.integers(1, 2))
def test_every_run_ends_and_the_highest_priority_that_may_run_does(
    given: list[tuple[int, bool]], turns: int, every: int
) -> None:
    """Runs come while others are active; only preemptible ones give their place away."""
    cluster = Cluster()
    for number, (priority, is_preemptible) in enumerate(given):
        new = entry(str(number), priority=priority, entered=number, is_preemptible=is_preemptible)
        cluster.add(new, turns)
        for _ in range(every):
            cluster.turn()
            for active in (one for one in cluster.entries.values() if one.is_started):
                higher = [one for one in waiting(cluster.entries.values())
                          if one.priority > active.priority]  # fmt: skip
                assert not (higher and active.is_preemptible)
    for _ in range(turns * len(given) + 1):
        cluster.turn()
    assert cluster.entries == {}
    assert set(cluster.phases.values()) <= {RunPhase.ENDED}
    not_preemptible = [n for n, (_, is_preemptible) in enumerate(given) if not is_preemptible]
    begun = [int(folder.name) for folder in cluster.begun]
    assert all(begun.count(number) == 1 for number in not_preemptible)


def test_a_run_outside_of_the_queue_keeps_the_cluster() -> None:
    assert action_for(entry(), is_free=False) is None


def test_a_chosen_run_that_did_not_begin_is_started_before_others() -> None:
    chosen = entry(is_started=True)
    assert action_for(entry("b", priority=9), chosen) == Start(chosen)


@pytest.mark.parametrize("phase", [RunPhase.STOPPED, RunPhase.ENDED])
def test_a_started_run_that_has_ended_leaves_the_queue(phase: RunPhase) -> None:
    ended = entry(is_started=True)
    assert action_for(ended, a=phase) == Remove(ended)


@pytest.mark.parametrize("phase", [RunPhase.STOPPED, RunPhase.WAITING])
def test_a_run_that_stopped_for_another_one_waits_again(phase: RunPhase) -> None:
    stopped = replace(entry(is_started=True), stop_requested=1.0)
    assert action_for(stopped, entry("b", priority=1), a=phase) == Requeue(stopped)


@pytest.mark.parametrize("phase", [RunPhase.BEGINNING, RunPhase.ACTIVE])
def test_a_waiting_run_that_another_command_started_is_adopted(phase: RunPhase) -> None:
    assert action_for(entry(), a=phase) == Adopt(entry())


@pytest.mark.parametrize(
    ("active", "head"),
    [
        (entry(is_started=True, is_preemptible=True), entry("b")),
        (entry(is_started=True, is_preemptible=False), entry("b", priority=1)),
        (entry(is_started=True, is_preemptible=True, priority=2), entry("b", priority=1)),
    ],
    ids=["same priority", "not preemptible", "lower priority"],
)
def test_a_run_is_not_preempted(active: Entry, head: Entry) -> None:
    assert action_for(active, head, a=RunPhase.ACTIVE) is None


def test_a_run_that_is_just_beginning_is_preempted_later() -> None:
    active, head = entry(is_started=True, is_preemptible=True), entry("b", priority=1)
    assert action_for(active, head, a=RunPhase.BEGINNING) is None
    assert action_for(active, head, a=RunPhase.ACTIVE) == Preempt(active)


def test_a_request_to_stop_is_repeated_only_when_it_was_lost() -> None:
    """A second signal ends a run without a checkpoint."""
    asked = replace(entry(is_started=True, is_preemptible=True), stop_requested=100.0)
    head, due = entry("b", priority=1), 100.0 + GRACE_S + REPEAT_S
    assert action_for(asked, head, a=RunPhase.ACTIVE, now=due) is None
    assert action_for(asked, head, a=RunPhase.ACTIVE, now=due + 1) == Preempt(asked)
