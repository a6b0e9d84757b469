"""Curves of a report: few points, and the same extremes."""

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.report.curves import Curve, kept

values = st.lists(st.none() | st.floats(-1e6, 1e6), max_size=500)
limits = st.integers(4, 60)


@given(values, limits)
def test_thinned_curve_is_bounded_in_order_and_has_both_ends(
    values: list[float | None], limit: int
) -> None:
    indexes = list(kept(values, limit))
    assert len(indexes) <= limit
    assert indexes == sorted(set(indexes))
    if values:
        assert indexes[0] == 0 and indexes[-1] == len(values) - 1


@given(values, limits)
def test_thinned_curve_has_the_extremes(values: list[float | None], limit: int) -> None:
    curve = Curve(range(len(values)), values)
    thin = curve.thinned(limit)
    assert bool(curve.known) == bool(thin.known)
    if curve.known:
        assert (min(thin.known), max(thin.known)) == (min(curve.known), max(curve.known))


def test_a_spike_of_one_step_in_100_000_is_kept() -> None:
    values: list[float | None] = [1.0] * 100_000
    values[54_321] = 9.0
    thin = Curve(range(1, 100_001), values).thinned(2000)
    assert (54_322, 9.0) in zip(thin.steps, thin.values, strict=True)


def test_short_curve_keeps_all_points() -> None:
    curve = Curve([1, 2, 3], [3.0, 1.0, 2.0])
    assert curve.thinned(4) == curve


def test_values_that_are_not_finite_become_gaps() -> None:
    lines = [{"step": n, "loss": loss} for n, loss in enumerate((1.0, nan, inf, 2.0))]
    assert Curve.of(lines, "loss").values == [1.0, None, None, 2.0]


@pytest.mark.parametrize("value", [None, "1.0", True, [1.0]])
def test_values_that_are_no_numbers_are_left_out(value: object) -> None:
    lines = [{"step": 1, "loss": 1.0}, {"step": 2, "loss": value}, {"step": 3}]
    assert Curve.of(lines, "loss") == Curve([1], [1.0])


def test_values_on_the_page_have_six_digits() -> None:
    assert Curve([1, 2], [1 / 3, None]).as_json() == [[1, 2], [0.333333, None]]
