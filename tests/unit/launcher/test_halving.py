"""Which points of a sweep continue, and after how many steps."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.sweep.halving import most_steps, rungs, survivors

STEPS, POINTS = st.integers(1, 10_000), st.integers(1, 200)


@pytest.mark.parametrize(
    ("steps", "warmup_steps", "expected"),
    [
        (80, 0, [20, 40, 80]),
        (80, 20, [40, 80]),
        (80, 60, [80]),
        (3, 0, [1, 2, 3]),
        (2, 0, [1, 2]),
        (1, 0, [1]),
    ],
)
def test_points_are_compared_at_a_quarter_and_half_beyond_the_warmup(
    steps: int, warmup_steps: int, expected: list[int]
) -> None:
    assert rungs(steps, warmup_steps) == expected


def test_the_better_half_survives_in_its_order() -> None:
    assert survivors({"a": 3.0, "b": 1.0, "c": 2.0, "d": 4.0}) == ["b", "c"]


def test_the_first_of_equal_points_survives() -> None:
    assert survivors({"a": 1.0, "b": 1.0}) == ["a"]


def test_a_point_that_failed_or_diverged_is_the_worst() -> None:
    assert survivors({"a": math.nan, "b": math.inf, "c": 9.0, "d": 8.0}) == ["c", "d"]


def test_points_take_half_of_the_steps_of_the_grid() -> None:
    assert most_steps([20, 40, 80], 8) == 320


@given(STEPS, POINTS, STEPS)
def test_comparisons_ascend_to_the_last_step(steps: int, points: int, warmup_steps: int) -> None:
    found = rungs(steps, warmup_steps)
    assert found == sorted(set(found)) and found[-1] == steps
    assert most_steps(found, points) <= steps * points


@given(st.dictionaries(st.integers(), st.floats(), min_size=1))
def test_survivors_are_half_of_the_points_and_no_worse(losses: dict[int, float]) -> None:
    kept = survivors(losses)
    assert len(kept) == math.ceil(len(losses) / 2)
    worst = max((losses[name] for name in kept), key=lambda loss: (math.isnan(loss), loss))
    others = [losses[name] for name in losses if name not in kept]
    assert all(math.isnan(loss) or math.isnan(worst) or loss >= worst for loss in others)
