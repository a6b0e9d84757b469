"""Successive halving: the better half of the points continues. Pure arithmetic.

References:
    Successive halving: Jamieson and Talwalkar, https://arxiv.org/abs/1502.07943
"""

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

Name = TypeVar("Name")


def rungs(steps: int, warmup_steps: int) -> list[int]:
    """Returns the steps at which points are compared: a quarter, half and all of `steps`.

    Half of the points continue after each, so that all together take half of the steps. Earlier,
    losses say more about the warm-up and the first decay than about the end. A step within the
    warm-up is left out.
    """
    earlier = (math.ceil(steps / 4), math.ceil(steps / 2))
    return [*dict.fromkeys(step for step in earlier if warmup_steps < step < steps), steps]


def survivors(losses: Mapping[Name, float]) -> list[Name]:
    """Returns the half with the lowest losses, rounded up, in the order of `losses`.

    The first one wins a tie. A loss that is not a number counts as the worst.
    """
    ordered = sorted(
        losses, key=lambda name: math.inf if math.isnan(losses[name]) else losses[name]
    )
    best = ordered[: math.ceil(len(ordered) / 2)]
    return [name for name in losses if name in best]


def most_steps(comparisons: Sequence[int], points: int) -> int:
    """Returns the number of steps that all points take together when none fails."""
    total = done = 0
    for step in comparisons:
        total += points * (step - done)
        points, done = math.ceil(points / 2), step
    return total
