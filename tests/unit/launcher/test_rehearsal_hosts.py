"""The stubs of hosts choose and count as the code for real hosts does."""

from types import SimpleNamespace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.core.errors import HostError
from launcher.gang.host_selection import Host, choose, usable
from launcher.rehearsal.attempt import RehearsedGang
from launcher.rehearsal.clock import VirtualClock
from launcher.rehearsal.faults import Fault, FaultKind
from launcher.rehearsal.hosts import StubHosts, Unit
from launcher.rehearsal.record import RehearsedRun
from launcher.rehearsal.storage import Storage
from tests.support.rehearsals import TIMINGS, scenario

PLAIN = scenario(cluster={"spares": 3})
WORLD = PLAIN.launch.plan.world


def stubs(faults: list[Fault]) -> StubHosts:
    clock = VirtualClock(1e9)
    run = RehearsedRun(clock)

    def start(hosts: StubHosts, _: object, units: Any) -> RehearsedGang:
        return RehearsedGang(hosts, units, run, Storage())

    return StubHosts(PLAIN.launch, clock, TIMINGS, faults, start)


def as_host(unit: Unit) -> Host:
    return Host("", unit.number, idle=not unit.is_ready, node_id=str(unit.number))


@settings(deadline=None)
@given(
    st.lists(st.floats(0.0, 1.0, exclude_max=True), max_size=6),
    st.sets(st.integers(0, 3), max_size=2),
    st.floats(1.0, 400.0),
)
def test_next_hosts_are_as_good_as_those_of_a_real_gang(
    lost: list[float], excluded: set[int], later_s: float
) -> None:
    faults = [Fault(10.0 + n, FaultKind.HOST, victim) for n, victim in enumerate(lost)]
    hosts = stubs(faults)
    hosts.gang(PLAIN.launch)
    for process in excluded:
        hosts.exclude(process)
    hosts.clock.sleep(later_s)
    up = [unit for unit in hosts.units if unit.is_usable]
    avoided = {("", unit.number) for unit in up if unit.avoided_until_s > hosts.clock.now_s}
    ready = {str(unit.number) for unit in up if unit.is_ready}
    chosen, _ = choose([as_host(unit) for unit in up], 1, 4, avoided, held=ready)
    try:
        found = {str(unit.number) for unit in hosts.choose(4)}
    except HostError:
        assert chosen is None
        return
    # Which of several equal hosts is taken changes nothing: whether it is ready, or avoided, does.
    assert chosen is not None
    names = {host.node_id for host in chosen}
    assert len(found - ready) == len(names - ready)
    assert len(found & {str(n) for _, n in avoided}) == len(names & {str(n) for _, n in avoided})


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1.0, exclude_max=True), max_size=8), st.floats(1.0, 400.0))
def test_available_hosts_are_those_that_are_up(lost: list[float], later_s: float) -> None:
    faults = [Fault(10.0 * n, FaultKind.HOST, victim) for n, victim in enumerate(lost)]
    hosts = stubs(faults)
    hosts.clock.sleep(later_s)
    places = [("", unit.number) for unit in hosts.units if unit.is_usable]
    assert hosts.available_hosts(WORLD) == usable(WORLD, places)


def test_slices_count_only_when_they_are_whole() -> None:
    cluster = {"accelerator": "v5e-16", "hosts": None, "devices_per_host": None, "slices": 2}
    data = {"source": "stdlib", "seq_len": 16, "global_batch": 32}
    sliced = scenario({"data": data}, cluster)
    clock, world = VirtualClock(1e9), sliced.launch.plan.world
    faults = [Fault(10.0, FaultKind.HOST, 0.6)]
    hosts = StubHosts(sliced.launch, clock, TIMINGS, faults, lambda *_: SimpleNamespace())  # type: ignore[arg-type, return-value]
    clock.sleep(20.0)
    alive = [(str(n // 4), n % 4) for n in range(8) if n != 5]
    assert hosts.available_hosts(world) == usable(world, alive) == 4
