"""Paired differences of losses: when they are equal, and the interval of their mean."""

import random
from itertools import accumulate
from math import sqrt

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from launcher.comparison.losses import (
    FEWEST_PAIRS,
    FIRST_STEPS,
    Equality,
    Losses,
    Rounding,
    compare_losses,
    half_width,
)
from launcher.comparison.steps import Step, Steps

NOTHING, ROUNDING, ONLY_ROUNDING = Rounding(0.0, False), Rounding(1e-4, False), Rounding(1e-4, True)
SERIES = st.lists(st.floats(-10, 10), min_size=2, max_size=50)


def steps(losses: list[float]) -> Steps:
    return {n: Step(loss, 0, None, None) for n, loss in enumerate(losses, 1)}


def compared(first: list[float], second: list[float], rounding: Rounding = NOTHING) -> Losses:
    return compare_losses(steps(first), steps(second), range(1, len(first) + 1), rounding)


def autocorrelated(count: int, factor: float, seed: int) -> list[float]:
    """A stationary series around 0 in which each value keeps a part of the one before."""
    normal = random.Random(seed)
    begin = normal.gauss() / sqrt(1 - factor**2)
    noise = [normal.gauss() for _ in range(count - 1)]
    return list(accumulate(noise, lambda value, one: factor * value + one, initial=begin))


@pytest.mark.parametrize(("factor", "least"), [(0.0, 0.93), (0.5, 0.93), (0.9, 0.87)])
def test_interval_contains_the_mean_95_times_of_100(factor: float, least: float) -> None:
    series = [autocorrelated(200, factor, seed) for seed in range(1000)]
    hits = sum(abs(sum(one) / len(one)) <= half_width(one) for one in series)
    assert least <= hits / len(series) <= 0.97


def test_a_trend_widens_the_interval() -> None:
    trend = [step / 100 for step in range(100)]
    mixed = random.Random(0).sample(trend, len(trend))
    assert half_width(trend) > 3 * half_width(mixed)


@given(SERIES, st.floats(-100, 100))
def test_interval_does_not_depend_on_the_mean(values: list[float], shift: float) -> None:
    shifted = [value + shift for value in values]
    assert half_width(shifted) == pytest.approx(half_width(values), abs=1e-9)


@given(SERIES, st.floats(0.01, 100))
def test_interval_scales_with_the_values(values: list[float], factor: float) -> None:
    scaled = [factor * value for value in values]
    assert half_width(scaled) == pytest.approx(factor * half_width(values), rel=1e-6, abs=1e-9)


@given(SERIES.map(lambda values: [abs(value) + 1 for value in values]))
def test_a_curve_equals_itself_bit_for_bit(losses: list[float]) -> None:
    found = compared(losses, losses)
    assert found.equality is Equality.BITWISE and found.first_different_step is None
    assert found.all_steps.mean == found.largest_relative_difference == 0


@given(st.integers(0, 39), st.floats(1e-12, 1.0))
def test_the_first_different_step_is_found(index: int, difference: float) -> None:
    second = [2.0] * 40
    second[index] += difference
    assume(second[index] != 2.0)
    found = compared([2.0] * 40, second)
    assert found.first_different_step == index + 1 and found.equality is Equality.DIFFERENT


def test_small_differences_are_rounding_only_where_rounding_can_differ() -> None:
    first, second = [2.0] * 40, [2.0 + 1e-5] * 40
    assert compared(first, second, ROUNDING).equality is Equality.ROUNDING
    assert compared(first, second, NOTHING).equality is Equality.DIFFERENT


def test_growing_differences_are_rounding_where_nothing_else_can_differ() -> None:
    first, second = [2.0] * 40, [2.0 * (1 + 1e-8 * 1.5**step) for step in range(40)]
    assert compared(first, second, ONLY_ROUNDING).equality is Equality.GROWN_ROUNDING
    assert compared(first, second, ROUNDING).equality is Equality.DIFFERENT


@pytest.mark.parametrize("begin", [0, 20])
def test_a_jump_is_not_rounding(begin: int) -> None:
    """Such as the first steps of a resumed run whose state is wrong."""
    first, second = [2.0] * 40, [2.0] * begin + [2.0] * (FIRST_STEPS - 1) + [2.01] * 40
    second[begin] += 1e-7
    assert compared(first, second[:40], ONLY_ROUNDING).equality is Equality.DIFFERENT


def test_mean_of_the_last_half_leaves_out_the_begin() -> None:
    found = compared([2.0] * 40, [3.0] * 20 + [2.5] * 20)
    assert found.all_steps.mean == pytest.approx(0.75)
    assert (found.last_half.first_step, found.last_half.last_step) == (21, 40)
    assert found.last_half.mean == found.last_half.low == found.last_half.high == 0.5


def test_few_steps_have_no_interval() -> None:
    found = compared([2.0] * (FEWEST_PAIRS - 1), [3.0] * (FEWEST_PAIRS - 1))
    assert (found.all_steps.mean, found.all_steps.low, found.all_steps.high) == (1.0, None, None)
