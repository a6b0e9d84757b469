"""How far rounding explains the difference of two computations on different meshes or versions.

The tolerance is measured: the steps are replayed once more with the sums of each step in another
order (another number of micro-batches, and no sums that CPU devices make by themselves), and the
two replays are compared.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from launcher.audit.differences import FirstDifference, Quantity, Steps
from launcher.audit.recorded import Recorded

FACTOR = 8.0
"""The tolerance in units of the largest difference that reordered sums have caused so far.

Two orders of a sum are two draws: their distance says what is usual, not what is possible.
"""
FIRST_STEPS = 10
"""Number of steps whose largest difference is the least unit: one step may differ by chance by 0.
"""
FLOOR = 4 * 2.0**-23
"""Relative difference that rounding of float32 always explains: four units in the last place."""
QUANTITIES = (Quantity.LOSS, Quantity.GRAD_NORM)


@dataclass(frozen=True)
class Rounding:
    """How a replay compares with the record when both may round differently."""

    largest: float
    """Largest relative difference of a loss or of a norm of the gradient."""
    tolerance: float
    """The tolerance at the last step, relative."""
    difference: FirstDifference | None
    """The first step that rounding does not explain."""


def compare_rounded(recorded: Recorded, replay: Steps, reordered: Steps) -> Rounding:
    """Compares a replay with the record, within what `reordered` differs from the replay."""
    largest, tolerance, first = 0.0, FLOOR, None
    for number, limits in _limits(replay, reordered):
        known, tolerance = recorded.steps[number], max(limits.values())
        if known.examples not in (None, replay[number].examples):
            first = first or FirstDifference(number, Quantity.EXAMPLES)
        for quantity, limit in limits.items():
            found = _relative(getattr(known, quantity), getattr(replay[number], quantity))
            largest = max(largest, found)
            if found > limit:
                first = first or FirstDifference(number, quantity)
    return Rounding(largest, tolerance, first)


def _limits(replay: Steps, reordered: Steps) -> Iterator[tuple[int, dict[Quantity, float]]]:
    """Yields each step with the tolerance of each quantity, which never shrinks."""
    numbers = sorted(replay)
    grown = {
        quantity: list(
            accumulate(
                (_relative(getattr(replay[n], quantity), getattr(reordered[n], quantity))
                 for n in numbers), max,
            )
        )
        for quantity in QUANTITIES
    }  # fmt: skip
    for place, number in enumerate(numbers):
        at = min(max(place, FIRST_STEPS - 1), len(numbers) - 1)
        yield number, {q: max(FLOOR, FACTOR * values[at]) for q, values in grown.items()}


def _relative(one: float | None, other: float | None) -> float:
    """Returns a relative difference; infinite when only one value is finite."""
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    return abs(one - other) / max(abs(one), abs(other), 1e-30)
