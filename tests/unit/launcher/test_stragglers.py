"""Which hosts are called slow, from what their heartbeats say."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from launcher.health.stragglers import (
    CPU_PROBE_LASTING_S,
    HEARTBEATS,
    HOST_TIME_LASTING_S,
    Straggler,
    StragglerDetector,
)
from trainer.contract.protocol.events import HeartbeatEvent

BEAT_S = 2.0
FAST: dict[str, Any] = {"host_time_s": 0.002, "step_time_s": 0.5, "cpu_probe_s": 0.002}


class Hosts:
    """Three hosts alike, but for what a test says of some."""

    def __init__(self) -> None:
        self.paces, self.now = StragglerDetector(), 0.0

    def beat(self, times: int = 1, **odd: dict[str, float]) -> list[Straggler]:
        """Who is named in that time; `h1={...}` says what differs on host 1."""
        named = []
        for _ in range(times):
            for process in range(3):
                event = {**FAST, **odd.get(f"h{process}", {})}
                self.paces.on_heartbeat(process, HeartbeatEvent(**event))
            self.now += BEAT_S
            named += self.paces.named(self.now)
        return named


SLOW_DATA = {"host_time_s": 0.4, "step_time_s": 0.5}
SLOW_PROCESSOR = {"cpu_probe_s": 0.05}


def test_hosts_that_are_alike_are_not_slow() -> None:
    assert Hosts().beat(100) == []


def test_the_host_that_does_not_wait_for_the_others_is_named_once() -> None:
    (slow,) = Hosts().beat(100, h1=SLOW_DATA)
    assert (slow.process, slow.measure, round(slow.factor)) == (1, "host_time_s", 200)
    assert str(slow) == (
        "host-0001 is slow: it takes 400 ms of its own in each step, 200.0 times what is usual"
    )


def test_a_host_with_a_slow_processor_is_named() -> None:
    (slow,) = Hosts().beat(100, h2=SLOW_PROCESSOR)
    assert (slow.process, slow.measure, round(slow.factor)) == (2, "cpu_probe_s", 25)


def test_a_host_that_is_slow_in_both_ways_is_named_once() -> None:
    assert len(Hosts().beat(100, h2={**SLOW_PROCESSOR, **SLOW_DATA})) == 1


def test_of_two_hosts_the_slow_one_is_named() -> None:
    paces = StragglerDetector()
    for _ in range(HEARTBEATS):
        paces.on_heartbeat(0, HeartbeatEvent(**FAST))
        paces.on_heartbeat(1, HeartbeatEvent(**{**FAST, **SLOW_DATA}))
    paces.named(0.0)
    assert [slow.process for slow in paces.named(HOST_TIME_LASTING_S)] == [1]


def test_own_time_that_the_devices_hide_is_no_matter() -> None:
    assert Hosts().beat(100, h1={"host_time_s": 0.1, "step_time_s": 0.5}) == []


def test_a_host_alone_is_never_slow() -> None:
    paces = StragglerDetector()
    for now in range(100):
        paces.on_heartbeat(0, HeartbeatEvent(**{**FAST, **SLOW_DATA}))
        assert paces.named(float(now)) == []


def test_momentary_slowness_is_not_reported() -> None:
    hosts = Hosts()
    for _ in range(20):
        assert hosts.beat(2, h1={**SLOW_DATA, **SLOW_PROCESSOR}) == []
        assert hosts.beat(5) == []
    assert hosts.beat(int(CPU_PROBE_LASTING_S / BEAT_S), h1=SLOW_PROCESSOR) == []


def test_recovered_host_that_slows_again_is_named_again() -> None:
    hosts = Hosts()
    assert len(hosts.beat(20, h1=SLOW_DATA)) == 1
    assert hosts.beat(20) == []
    assert len(hosts.beat(20, h1=SLOW_DATA)) == 1


def test_a_host_at_the_edge_is_named_once() -> None:
    hosts = Hosts()
    over, usual = {"cpu_probe_s": 0.05}, {"cpu_probe_s": 0.02}
    named = hosts.beat(50, h0=usual, h1=over, h2=usual)
    for _ in range(10):
        named += hosts.beat(10, h0=usual, h1={"cpu_probe_s": 0.034}, h2=usual)
        named += hosts.beat(10, h0=usual, h1=over, h2=usual)
    assert len(named) == 1


def test_ended_host_is_not_compared() -> None:
    hosts = Hosts()
    hosts.beat(HEARTBEATS, h1=SLOW_DATA)
    for process in (0, 2):
        hosts.paces.on_end(process)
    assert hosts.paces.named(hosts.now + 100) == []


numbers: Any = st.floats() | st.none() | st.integers()
beats = st.builds(HeartbeatEvent, host_time_s=numbers, step_time_s=numbers, cpu_probe_s=numbers)


@given(st.lists(st.tuples(st.integers(0, 2), beats, st.floats(0, 10)), max_size=60))
def test_invalid_values_are_ignored_and_no_host_is_named_twice(history) -> None:
    paces, now = StragglerDetector(), 0.0
    for process, beat, passed_s in history:
        now += passed_s
        paces.on_heartbeat(process, beat)
        assert all(slow.factor >= 1.5 for slow in paces.named(now))
        assert paces.named(now) == []
