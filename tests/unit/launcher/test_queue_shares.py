"""How the runs of a queue share hosts, held against a simulated cluster that counts them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.queue.decisions import (
    Action,
    Preempt,
    Remove,
    Requeue,
    Resize,
    RunPhase,
    RunView,
    Start,
    next_action,
)
from launcher.queue.entries import Entry, waiting
from launcher.queue.shares import shares_of, shares_with
from tests.support.launch_plans import small_launch

HOSTS = 4
SIZES = st.sets(st.integers(1, HOSTS - 1)).map(lambda smaller: (*sorted(smaller), HOSTS))


def elastic(name: str = "a", sizes: Sequence[int] = (1, 2, 3, 4), **fields: object) -> Entry:
    """An elastic run that has started on all hosts, unless `fields` say otherwise."""
    own = {"priority": 0, "is_preemptible": False, "is_elastic": True, "is_started": True}
    folder = Path("/runs") / name
    rest = {"entered": float(ord(name[0])), "hosts": HOSTS, **fields}
    return Entry(folder=folder, grace_s=1.0, sizes=tuple(sizes), **{**own, **rest})


def waits(name: str = "b", sizes: Sequence[int] = (1, 2, 3, 4), **fields: object) -> Entry:
    return replace(elastic(name, sizes, **fields), is_started=False, hosts=None)


RUNS = st.lists(
    st.builds(
        Entry,
        folder=st.just(Path("/runs/any")),
        priority=st.integers(-2, 2),
        is_preemptible=st.booleans(),
        grace_s=st.just(1.0),
        entered=st.floats(0, 1),
        sizes=SIZES,
        is_elastic=st.booleans(),
        is_started=st.booleans(),
        hosts=st.none() | st.integers(1, HOSTS),
    ),
    max_size=6,
    unique_by=lambda run: run.entered,
)


@given(RUNS)
def test_runs_get_sizes_that_fit_and_no_more_hosts_than_there_are(
    runs: list[Entry],
) -> None:
    shares = shares_of(runs)
    if shares is None:
        return
    assert sum(shares.values()) <= HOSTS
    for run, hosts in shares.items():
        is_fixed = run.is_started and not run.is_elastic
        assert hosts == (run.hosts or HOSTS) if is_fixed else hosts in run.sizes


@given(RUNS, SIZES, st.integers(-2, 2))
def test_no_run_gives_hosts_to_a_lower_priority(
    runs: list[Entry], sizes: tuple[int, ...], priority: int
) -> None:
    started = [replace(run, is_started=True) for run in runs]
    shares = shares_with(started, waits("z", sizes, priority=priority))
    for run in started:
        if shares and run.priority > priority:
            assert shares[run] >= (run.hosts or HOSTS)


@given(RUNS)
def test_shares_do_not_depend_on_the_shares_before(runs: list[Entry]) -> None:
    """So requests that were carried out need no further ones."""
    started = [replace(run, is_started=True, is_elastic=True) for run in runs]
    shares = shares_of(started)
    if shares is not None:
        after = [replace(run, hosts=hosts) for run, hosts in shares.items()]
        assert shares_of(after) == {run: run.hosts for run in after}


def test_every_run_gets_its_least_and_the_first_gets_the_rest() -> None:
    first, second, third = elastic(), waits("b"), waits("c")
    assert shares_of([first, second, third]) == {first: 2, second: 1, third: 1}


def test_a_higher_priority_gets_all_but_the_least_of_the_others() -> None:
    first, urgent = elastic(), waits(priority=1)
    assert shares_with([first], urgent) == {first: 1, urgent: 3}


def test_a_run_that_fits_only_on_all_hosts_waits_for_an_elastic_one() -> None:
    assert shares_with([elastic()], waits(sizes=[4], priority=9)) is None


def test_a_run_with_a_cluster_of_its_own_size_shares_with_no_other() -> None:
    assert shares_with([elastic()], waits(sizes=[])) is None


@pytest.mark.parametrize(("needed", "victim"), [(1, "a"), (3, "b"), (4, "a")])
def test_no_run_is_preempted_whose_hosts_are_not_needed(needed: int, victim: str) -> None:
    """The lowest priority stops first; not at all when its hosts do not suffice."""
    low = elastic("a", priority=0, hosts=1, is_elastic=False, is_preemptible=True)
    high = elastic("b", priority=1, hosts=3, is_elastic=False, is_preemptible=True)
    head = waits("c", sorted({needed, HOSTS}), priority=2)
    views = {low: RunView(RunPhase.ACTIVE, 1), high: RunView(RunPhase.ACTIVE, 3)}
    action = next_action(
        [low, high, head], lambda run: views.get(run, RunView(RunPhase.WAITING)), lambda: True, 0.0
    )
    assert action == Preempt(low if victim == "a" else high)


def test_runs_grow_and_start_once_others_have_shrunk() -> None:
    """Where the allowed sizes have gaps, one run shrinks while another grows."""
    first, second = elastic("a", [1, 3, 4], hosts=3), elastic("b", [1, 2, 4], hosts=1)
    third = waits("c", [1, 4])

    def following(runs: Sequence[Entry], used: int) -> Action | None:
        """The next action while the first run still uses so many hosts."""
        views = {"a": RunView(RunPhase.ACTIVE, used), "b": RunView(RunPhase.ACTIVE, 1)}
        waits = RunView(RunPhase.WAITING)
        return next_action(runs, lambda run: views.get(run.folder.name, waits), lambda: True, 0.0)

    assert following([first, second, third], 3) == Resize(first, 1)
    smaller, larger = replace(first, hosts=1), replace(second, hosts=2)
    assert following([smaller, second, third], 3) is None
    assert following([smaller, second, third], 1) == Resize(second, 2)
    assert following([smaller, larger, third], 1) == Start(third, 1)


def test_a_run_that_waits_for_other_runs_is_not_asked_for_hosts() -> None:
    first, second = elastic("a"), waits("b")
    views = {first: RunView(RunPhase.ACTIVE), second: RunView(RunPhase.WAITING)}
    assert next_action([first, second], views.__getitem__, lambda: True, 0.0) is None


@dataclass
class SharedCluster:
    """Hosts that runs share. A run takes some turns on any number of hosts.

    It grows at once, and shrinks late.
    """

    entries: dict[Path, Entry] = field(default_factory=dict)
    left: dict[Path, int] = field(default_factory=dict)
    phases: dict[Path, RunPhase] = field(default_factory=dict)
    used: dict[Path, int] = field(default_factory=dict)
    """Hosts of active runs, by folder."""
    limits: dict[Path, int] = field(default_factory=dict)
    begun: list[Path] = field(default_factory=list)

    def add(self, new: Entry, turns: int) -> None:
        self.entries[new.folder] = new
        self.left[new.folder], self.phases[new.folder] = turns, RunPhase.WAITING

    def view_of(self, entry: Entry) -> RunView:
        return RunView(self.phases[entry.folder], self.used.get(entry.folder))

    def turn(self) -> None:
        """Carries out all actions; then runs take up their limits, and active ones work."""
        while action := next_action(list(self.entries.values()), self.view_of, lambda: True, 0.0):
            self._carry_out(action)
            assert sum(self.used.values()) <= HOSTS
        for folder in list(self.used):
            self.used[folder] = self.limits[folder]
            self.left[folder] -= 1
            if self.left[folder] == 0:
                self._end(folder, RunPhase.ENDED)
        assert sum(self.used.values()) <= HOSTS

    def _carry_out(self, action: object) -> None:
        match action:
            case Start(entry=one, hosts=hosts):
                changes = {"is_started": True, "stop_requested": None, "hosts": hosts}
                self.entries[one.folder] = replace(one, **changes)
                self.phases[one.folder] = RunPhase.ACTIVE
                self.used[one.folder] = self.limits[one.folder] = hosts or HOSTS
                self.begun.append(one.folder)
            case Resize(entry=one, hosts=hosts):
                assert one.is_elastic and hosts in one.sizes
                self.entries[one.folder] = replace(one, hosts=hosts)
                self.limits[one.folder] = hosts
                self.used[one.folder] = max(hosts, self.used[one.folder])
            case Preempt(entry=one):
                assert one.is_preemptible
                self.entries[one.folder] = replace(one, stop_requested=0.0)
                self._end(one.folder, RunPhase.STOPPED)
            case Requeue(entry=one):
                changes = {"is_started": False, "stop_requested": None, "hosts": None}
                self.entries[one.folder] = replace(one, **changes)
                self.phases[one.folder] = RunPhase.WAITING
            case Remove(entry=one):
                del self.entries[one.folder]

    def _end(self, folder: Path, phase: RunPhase) -> None:
        self.phases[folder] = phase
        del self.used[folder]


JOBS = st.lists(
    st.tuples(st.integers(-2, 2), SIZES, st.booleans(), st.booleans(), st.integers(1, 3)),
    max_size=8,
)


@given(JOBS, st.integers(0, 2))
def test_all_runs_end_and_hosts_are_never_used_twice(jobs: list, every: int) -> None:
    """Runs come while others are active, shrink and grow late, and may be preempted."""
    cluster = SharedCluster()
    for number, (priority, sizes, can_resize, is_preemptible, turns) in enumerate(jobs):
        fields = {"is_elastic": can_resize, "is_preemptible": is_preemptible, "entered": number}
        cluster.add(waits(f"{number}", sizes, priority=priority, **fields), turns)
        for _ in range(every):
            cluster.turn()
    for _ in range(8 * len(jobs) + 1):
        cluster.turn()
    assert cluster.entries == {}
    assert set(cluster.phases.values()) <= {RunPhase.ENDED}
    certain = [Path(f"/runs/{n}") for n, job in enumerate(jobs) if not job[3]]
    assert all(cluster.begun.count(folder) == 1 for folder in certain)


@given(JOBS)
def test_the_next_run_waits_only_while_it_does_not_fit(jobs: list) -> None:
    cluster = SharedCluster()
    for number, (priority, sizes, can_resize, _, _) in enumerate(jobs):
        fields = {"is_elastic": can_resize, "entered": number}
        cluster.add(waits(f"{number}", sizes, priority=priority, **fields), 100)
    for _ in range(2 * len(jobs)):
        cluster.turn()
    started = [run for run in cluster.entries.values() if run.is_started]
    following = waiting(cluster.entries.values())
    assert not (following and shares_with(started, following[0]))
    assert cluster.used == {run.folder: run.hosts for run in started}
    if shares := shares_of(started):
        assert {run: run.hosts for run in started} == shares


def test_an_elastic_run_shrinks_for_the_next_one_and_grows_at_its_end() -> None:
    cluster = SharedCluster()
    cluster.add(waits("a", [1, 4]), 5)
    cluster.turn()
    cluster.add(waits("b", [1, 4], is_elastic=False), 1)
    used = []
    for _ in range(3):
        cluster.turn()
        used.append(dict(cluster.used))
    first, second = Path("/runs/a"), Path("/runs/b")
    assert used == [{first: 1}, {first: 1}, {first: 4}]
    assert cluster.begun == [first, second]


@pytest.mark.parametrize(("limit", "hosts"), [(None, 4), (5, 4), (3, 2), (1, 1), (0, 1)])
def test_a_launch_within_a_limit_has_the_most_hosts_that_fit(
    tmp_path: Path, limit: int | None, hosts: int
) -> None:
    cluster = tmp_path / "elastic.yaml"
    cluster.write_text(
        "{accelerator: cpu, hosts: {min: 1, max: 4}, devices_per_host: 1, provider: {kind: local}}"
    )
    launch = small_launch(tmp_path, str(cluster))
    assert launch.sizes == (1, 2, 4)
    limited = replace(launch, host_limit=limit).within_limit
    assert limited.plan.world.processes == hosts
