"""Which losses and gradient norms are spikes, by the steps before them."""

import math
import random
import re
from pathlib import Path

import pytest

from trainer.step.spikes import (
    LEAST,
    LEVEL,
    LOSS_DEVIATIONS,
    READ_BEHIND,
    WINDOW,
    Limits,
    RecentSteps,
)

PICTURE = Path(__file__).parents[3] / "docs" / "stdlib.svg"
TRAINING = re.compile(r'<path d="(M [^"]+)" clip-path="[^"]+" style="fill: none; stroke: #1f77b4')
SCALE = re.compile(r'x="26.5\d+" y="([\d.]+)"[^>]*>(\d)</text>')


def curve(steps: int, seed: int = 0) -> list[tuple[int, float, float]]:
    """A falling loss with noise, and norms with a heavier tail."""
    draw = random.Random(seed)
    return [
        (step, 2 + 3 * math.exp(-step / 40) + draw.gauss(0, 0.03), math.exp(draw.gauss(0, 0.2)))
        for step in range(1, steps + 1)
    ]


def after(lines: list[tuple[int, float, float]]) -> RecentSteps:
    recent = RecentSteps()
    for line in lines:
        recent.add(*line)
    return recent


def test_first_steps_have_no_limits_but_must_be_finite() -> None:
    recent = after(curve(LEVEL + LEAST + READ_BEHIND))
    assert recent.limits(3) == Limits()
    assert Limits().are_kept(1e30, 1e30)
    assert not Limits().are_kept(math.nan, 1.0) and not Limits().are_kept(1.0, math.inf)
    assert after(curve(60)).limits(61) != Limits()


def test_undisturbed_curve_has_no_spike() -> None:
    recent = RecentSteps()
    for step, loss, norm in curve(2000):
        assert recent.limits(step).are_kept(loss, norm), step
        recent.add(step, loss, norm)


def test_curve_of_the_documentation_has_no_spike() -> None:
    """The picture has the points of the losses; their scale does not matter to the limits."""
    (path,) = TRAINING.findall(PICTURE.read_text(encoding="utf-8"))
    heights = [float(y) for _, y in re.findall(r"[ML] ([\d.]+) ([\d.]+)", path)]
    assert len(heights) > 200
    losses = [1 + (max(heights) - y) / 50 for y in heights]
    recent = RecentSteps()
    for step, loss in enumerate(losses, 1):
        assert recent.limits(step).are_kept(loss, 1.0), (step, loss)
        recent.add(step, loss, 1.0)


@pytest.mark.parametrize(("loss", "norm"), [(0.6, 1.0), (0.0, 40.0)], ids=["loss", "norm"])
def test_spike_of_either_value_is_found_and_leaves_the_limits(loss: float, norm: float) -> None:
    lines = curve(300)
    (step, usual, usual_norm), spike = lines[-1], RecentSteps()
    calm = after(lines[:-1])
    assert calm.limits(step).are_kept(usual, usual_norm)
    assert not calm.limits(step).are_kept(usual + loss, usual_norm * norm)
    spike = after([*lines[:-1], (step, usual + loss, usual_norm * norm)])
    (a, b), (c, d) = after(lines).limits(step + 2), spike.limits(step + 2)
    assert (c, d) == pytest.approx((a, b), rel=0.2)


def test_step_is_judged_without_the_results_of_the_step_before() -> None:
    lines = curve(200)
    before = after(lines[:-1]).limits(201)
    assert after(lines).limits(201) == before
    assert after(lines).limits(202) != before


def test_limits_after_a_resume_are_those_without_one() -> None:
    lines = curve(500)
    for saved in (30, 60, WINDOW, 300):
        whole, resumed = after(lines[:saved]), RecentSteps(after(lines[:saved]).saved)
        for step, loss, norm in lines[saved:]:
            assert resumed.limits(step) == whole.limits(step), (saved, step)
            whole.add(step, loss, norm)
            resumed.add(step, loss, norm)


def test_run_accepts_a_loss_that_stays_at_a_new_level() -> None:
    lines = curve(300)
    recent, found = after(lines), 0
    for step in range(301, 340):
        kept = recent.limits(step).are_kept(4.0, 1.0)
        found += not kept
        recent.add(step, 4.0, 1.0)
    assert LEVEL // 2 <= found <= LEVEL + READ_BEHIND and kept


def test_loss_that_falls_steadily_and_then_stays_has_no_spike() -> None:
    draw, recent = random.Random(1), RecentSteps()
    for step in range(1, 400):
        loss, norm = max(2.0, 8.0 - 0.03 * step) + draw.gauss(0, 0.005), 1.0
        assert recent.limits(step).are_kept(loss, norm), step
        recent.add(step, loss, norm)


def test_values_that_are_not_finite_and_norms_of_0_leave_no_trace() -> None:
    recent = after(curve(100))
    known = recent.saved
    recent.add(101, math.nan, 1.0)
    assert recent.saved == known
    recent.add(102, 2.0, 0.0)
    assert all(math.isfinite(value) for line in recent.saved for value in line)


def test_constant_losses_have_a_limit_above_them() -> None:
    recent = after([(step, 2.0, 1.0) for step in range(1, 101)])
    assert recent.limits(102).loss == pytest.approx(2.0 * (1 + 0.01 * LOSS_DEVIATIONS))
