"""The rates of faults as text, and the faults drawn from them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.rehearsal.faults import (
    PERIODS_S,
    Fault,
    FaultKind,
    FaultRate,
    draw_faults,
    parse_faults,
)
from trainer.contract.config.loader import ConfigError

DAY_S = 86400.0


@pytest.mark.parametrize(
    ("text", "kind", "per_hour"),
    [
        ("host 1/3h", "host", 1 / 3),
        ("preemption 2/day", "preemption", 1 / 12),
        ("hang 1/week", "hang", 1 / 168),
        ("process 3/2weeks", "process", 3 / 336),
        (" host  0.5 / month ", "host", 0.5 / 720),
        ("host 6/hour", "host", 6.0),
    ],
)
def test_rate_is_number_by_period(text: str, kind: str, per_hour: float) -> None:
    (rate,) = parse_faults(text)
    assert (rate.kind, rate.per_hour) == (kind, pytest.approx(per_hour))


def test_rates_of_several_kinds_are_in_order() -> None:
    rates = parse_faults("host 1/3h, preemption 2/day,hang 1/week")
    assert [rate.kind for rate in rates] == ["host", "preemption", "hang"]


@pytest.mark.parametrize("text", ["", " ", ","])
def test_no_rates_are_no_faults(text: str) -> None:
    assert parse_faults(text) == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hots 1/3h", "'hots' is not one of host, process, hang, preemption. Did you mean 'host'?"),
        ("host 1/fortnight", "the period 'fortnight' is not one of h, hour, day, week, month"),
        ("host 0/day", "above 0"),
        ("host 1/0h", "above 0"),
        ("host 99999/h", "of one per second at most"),
        ("host", "expected KIND N/PERIOD, such as host 1/3h, found 'host'"),
        ("host -1/day", "expected KIND N/PERIOD"),
        ("host 1/day, host 2/day", "host has two rates"),
    ],
)
def test_wrong_rate_is_a_problem_with_both_values(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_faults(text)
    (problem,) = error.value.problems
    assert message in problem.message
    assert problem.key == "--faults"
    assert problem.found
    assert problem.found in text
    assert problem.expected


def test_all_wrong_rates_are_reported_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        parse_faults("hots 1/h, host 1/year, hang 1/day")
    assert len(error.value.problems) == 2


@given(st.sampled_from(list(FaultKind)), st.integers(1, 99), st.sampled_from(list(PERIODS_S)))
def test_written_rate_is_read_again(kind: FaultKind, count: int, unit: str) -> None:
    (rate,) = parse_faults(f"{kind} {count}/{unit}")
    assert rate.per_hour * PERIODS_S[unit] / 3600 == pytest.approx(count)


def test_draws_of_one_seed_are_the_same_and_of_another_differ() -> None:
    rates = parse_faults("host 1/3h, hang 1/day")
    assert draw_faults(rates, DAY_S, "1") == draw_faults(rates, DAY_S, "1")
    assert draw_faults(rates, DAY_S, "1") != draw_faults(rates, DAY_S, "2")


def test_other_rates_do_not_change_the_draws_of_a_kind() -> None:
    alone = draw_faults(parse_faults("host 1/3h"), DAY_S, "1")
    beside = draw_faults(parse_faults("host 1/3h, hang 9/h"), DAY_S, "1")
    assert alone == [one for one in beside if one.kind is FaultKind.HOST]


@pytest.mark.parametrize("per_hour", [0.5, 4.0])
def test_faults_come_as_often_as_their_rate(per_hour: float) -> None:
    rates = [FaultRate(kind=FaultKind.HOST, per_hour=per_hour)]
    count = sum(len(draw_faults(rates, 10 * DAY_S, str(seed))) for seed in range(40))
    expected = per_hour * 240 * 40
    assert abs(count - expected) < 4 * expected**0.5


@given(st.floats(0.0, 1.0, exclude_max=True), st.integers(1, 5000))
def test_victim_is_one_of_the_hosts(victim: float, hosts: int) -> None:
    assert 0 <= Fault(0.0, FaultKind.HOST, victim).host(hosts) < hosts
