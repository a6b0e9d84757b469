"""Paired differences of two runs' losses at the steps with the same examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import sqrt

from launcher.comparison.steps import Steps

QUANTILE = sqrt(45.40)
"""Half-width of a 95 % confidence interval in units of its scale.

References:
    Lobato, "Testing That a Dependent Process Is Uncorrelated", JASA 96 (2001), table 1, one
    variable.
"""
FEWEST_PAIRS = 20
"""Minimum number of differences for a confidence interval."""
FIRST_STEPS = 10
"""Number of steps over which rounding does not grow beyond the tolerance."""


class Equality(StrEnum):
    """How equal the losses of two runs are."""

    BITWISE = "bitwise"
    ROUNDING = "rounding"
    """Rounding explains every difference."""
    GROWN_ROUNDING = "grown_rounding"
    """Rounding explains the first differences, and nothing else can differ; training amplifies."""
    DIFFERENT = "different"


@dataclass(frozen=True)
class Rounding:
    """The differences between two runs that rounding explains."""

    tolerance: float
    """Relative difference of two losses."""
    is_only_cause: bool
    """Whether nothing but rounding can differ."""


@dataclass(frozen=True)
class MeanDifference:
    """The mean over steps of the second run's loss minus that of the first, in nats."""

    first_step: int
    last_step: int
    steps: int
    """Number of steps in the mean."""
    mean: float
    low: float | None
    """Lower end of the 95 % confidence interval; null for fewer than 20 steps."""
    high: float | None
    """Upper end of the interval."""


@dataclass(frozen=True)
class Losses:
    """The comparison of the losses of two runs at the steps with the same examples."""

    equality: Equality
    first_different_step: int | None
    """The first step whose losses are not equal bit for bit; null without one."""
    largest_relative_difference: float
    """Largest difference of two losses, divided by the first run's loss."""
    all_steps: MeanDifference
    """The mean over all these steps."""
    last_half: MeanDifference
    """The mean over the last half of these steps. It leaves out the begin, where losses fall
    fast."""


def compare_losses(
    first: Steps, second: Steps, paired: Sequence[int], rounding: Rounding
) -> Losses:
    """Compares the losses at the paired steps, at least one."""
    differences = [second[step].loss - first[step].loss for step in paired]
    relative = [_relative(first[step].loss, second[step].loss) for step in paired]
    begin = next((index for index, one in enumerate(relative) if one), None)
    half = len(paired) // 2
    return Losses(
        equality=Equality.BITWISE if begin is None else _equality(relative[begin:], rounding),
        first_different_step=None if begin is None else paired[begin],
        largest_relative_difference=max(relative),
        all_steps=_mean_difference(paired, differences),
        last_half=_mean_difference(paired[half:], differences[half:]),
    )


def half_width(values: Sequence[float]) -> float:
    """Returns half of the width of the 95 % confidence interval of the mean of a series.

    The interval accounts for autocorrelation: its scale is that of the partial sums of the
    deviations from the mean, which needs no choice of a bandwidth. It assumes that the series is
    stationary; a trend widens it.

    References:
        Lobato (2001), see `QUANTILE`; Shao, "A Self-Normalized Approach to Confidence Interval
        Construction in Time Series", JRSS B 72 (2010).
    """
    count, mean = len(values), sum(values) / len(values)
    partial = squares = 0.0
    for value in values:
        partial += value - mean
        squares += partial**2
    return QUANTILE * sqrt(squares / count**3)


def _mean_difference(steps: Sequence[int], differences: Sequence[float]) -> MeanDifference:
    mean = sum(differences) / len(differences)
    half = half_width(differences) if len(differences) >= FEWEST_PAIRS else None
    return MeanDifference(
        first_step=steps[0],
        last_step=steps[-1],
        steps=len(steps),
        mean=mean,
        low=None if half is None else mean - half,
        high=None if half is None else mean + half,
    )


def _relative(first: float, second: float) -> float:
    difference = abs(second - first)
    return difference / abs(first) if first else difference


def _equality(relative: Sequence[float], rounding: Rounding) -> Equality:
    """Returns the equality of losses by their relative differences from the first one on."""
    if max(relative) <= rounding.tolerance:
        return Equality.ROUNDING
    if rounding.is_only_cause and max(relative[:FIRST_STEPS]) <= rounding.tolerance:
        return Equality.GROWN_ROUNDING
    return Equality.DIFFERENT
