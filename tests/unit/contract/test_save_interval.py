"""The interval between saves: least loss, within its bounds, for any cost and rate of faults."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.planning.save_interval import (
    DAY_S,
    DOUBT,
    DOUBT_S,
    HOST_MTBF_S,
    LEAST_COSTS,
    LONGEST_S,
    SaveStatistics,
    choose,
    mtbf_s,
    published_mtbf_s,
    settled,
)

COSTS = st.floats(0.01, 600.0)
FAULTS = st.integers(0, 1000)
HOST_S = st.floats(1.0, 1e10)
HOSTS = st.integers(1, 4096)


def _known(cost_s: float, faults: int = 0, host_s: float = 0.0) -> SaveStatistics:
    return SaveStatistics(blocked_s=cost_s, faults=faults, host_s=host_s)


def _overhead(interval_s: float, cost_s: float, mean_s: float) -> float:
    """Time lost and spent on saves per second of work: equation 20 of Daly 2006, no restart."""
    work_s = interval_s - cost_s
    return mean_s * math.expm1(interval_s / mean_s) / work_s - 1


@given(cost_s=st.floats(0.01, 30.0), costs_in_mtbf=st.floats(10.0, 1e5))
def test_interval_is_within_half_a_percent_of_dalys_least_loss(cost_s, costs_in_mtbf):
    mean_s = cost_s * costs_in_mtbf
    own = choose(_known(cost_s, faults=10**9, host_s=10**9 * mean_s), 1)
    assert own.mtbf_s == pytest.approx(mean_s, rel=1e-4)
    if own.seconds == LONGEST_S:
        return
    least = min(
        _overhead(cost_s + mean_s * 1.02**step, cost_s, mean_s) for step in range(-500, 200)
    )
    assert _overhead(own.seconds, cost_s, mean_s) <= 1.005 * least


@given(cost_s=COSTS, more=st.floats(1.0, 10.0), faults=FAULTS, host_s=HOST_S, hosts=HOSTS)
def test_a_dearer_save_never_makes_the_interval_shorter(cost_s, more, faults, host_s, hosts):
    cheap = choose(_known(cost_s, faults, host_s), hosts)
    assert choose(_known(cost_s * more, faults, host_s), hosts).seconds >= cheap.seconds


@given(cost_s=COSTS, faults=FAULTS, more=st.integers(0, 100), host_s=HOST_S, hosts=HOSTS)
def test_more_faults_never_make_the_interval_longer(cost_s, faults, more, host_s, hosts):
    calm = choose(_known(cost_s, faults, host_s), hosts)
    assert choose(_known(cost_s, faults + more, host_s), hosts).seconds <= calm.seconds


@given(cost_s=COSTS, faults=FAULTS, host_s=HOST_S, hosts=HOSTS, more=st.floats(1.0, 100.0))
def test_time_without_faults_never_makes_the_interval_shorter(cost_s, faults, host_s, hosts, more):
    early = choose(_known(cost_s, faults, host_s), hosts)
    assert choose(_known(cost_s, faults, host_s * more), hosts).seconds >= early.seconds * (
        1 - 1e-9
    )


@given(
    cost_s=COSTS, faults=FAULTS, host_s=HOST_S, hosts=HOSTS, write_s=st.floats(0, 7200)
)  # fmt: skip
def test_interval_keeps_its_bounds(cost_s, faults, host_s, hosts, write_s):
    seconds = choose(_known(cost_s, faults, host_s), hosts, write_s=write_s).seconds
    shortest = max(write_s, LEAST_COSTS * cost_s)
    assert shortest <= seconds <= max(shortest, LONGEST_S)


@given(cost_s=COSTS, faults=FAULTS, host_s=HOST_S, hosts=HOSTS)
def test_interval_is_never_longer_than_at_the_published_rate(cost_s, faults, host_s, hosts):
    known = _known(cost_s, faults, host_s)
    assert choose(known, hosts).seconds <= settled(known, hosts).seconds


def test_published_mtbf_is_that_of_llama_3():
    assert round(HOST_MTBF_S / DAY_S) == 264
    assert published_mtbf_s(0, 0.0, 1) == HOST_MTBF_S
    assert published_mtbf_s(0, 0.0, 2048) == pytest.approx(54 * DAY_S / 419)


def test_mtbf_of_bad_hosts_is_their_own_from_the_first_fault():
    assert mtbf_s(1, 3600.0, 1) == pytest.approx(3660.0 / 1.1)
    assert mtbf_s(100, 100 * 1800.0, 1) == pytest.approx(1800.0, rel=0.01)


def test_mtbf_of_hosts_as_published_settles_at_the_published_one():
    hosts, faults = 2048, 20
    assert mtbf_s(faults, faults * HOST_MTBF_S, hosts) == pytest.approx(
        HOST_MTBF_S / hosts, rel=0.01
    )
    assert mtbf_s(0, 3600.0 * hosts, hosts) == published_mtbf_s(0, 3600.0 * hosts, hosts)


@given(cost_s=st.floats(0.1, 5.0), time_s=st.floats(3600.0, 86400.0))
def test_doubt_costs_what_the_constants_say_until_the_first_fault(cost_s, time_s):
    """The docstring of DOUBT: seconds of saves until then, and of the loss by the fault."""
    now_s = spent_s = 0.0
    while now_s < time_s:
        interval_s = choose(_known(cost_s, host_s=now_s), 1).seconds
        now_s, spent_s = now_s + interval_s, spent_s + cost_s
    assert spent_s <= math.sqrt(2 * DOUBT * cost_s * (time_s + DOUBT_S)) * 1.05 + 2 * cost_s
    assert interval_s / 2 <= math.sqrt(cost_s * (time_s + DOUBT_S) / (2 * DOUBT)) * 1.001


@given(faults=FAULTS, host_s=HOST_S, hosts=HOSTS)
def test_published_mtbf_is_that_of_one_host_divided_by_their_number(faults, host_s, hosts):
    one_s = published_mtbf_s(faults, host_s, 1)
    assert published_mtbf_s(faults, host_s, hosts) == pytest.approx(one_s / hosts)


def test_an_interval_is_described_with_what_it_follows_from():
    known = SaveStatistics(blocked_s=30.0, saves=1, faults=1, host_s=1e6)
    assert str(settled(known, 2048)) == (
        "every 9.84 min; a save costs 30 s (measured), 1 fault so far, allows for one in 96.9 min"
    )
