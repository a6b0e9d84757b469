"""Which losses and gradient norms are spikes, by the run's own last steps. Pure.

A value is a spike when it is above the median of the last steps by more than DEVIATIONS robust
standard deviations: 1.4826 times the median absolute deviation, which a few spikes among the steps
do not move. Gradient norms are compared by their logarithm: their noise is a factor. Every process
computes the same limits, because all have the same numbers.

References:
    Median absolute deviation: P. Rousseeuw and C. Croux, "Alternatives to the Median Absolute
    Deviation", Journal of the American Statistical Association 88 (1993), 1273-1283.
    Dropped updates by the last 128 losses and norms, there with mean and standard deviation:
    SkipStepOptimizer of https://github.com/allenai/OLMo-core.
    Going back and leaving out the batches of a spike: PaLM, section 5.1,
    https://arxiv.org/abs/2204.02311
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from statistics import median
from typing import NamedTuple

WINDOW = 128
"""Number of last steps that a step is compared with."""
LEAST = 32
"""Fewest steps to compare with: the first steps of a run have no limits."""
NORMAL = 1.4826
"""Standard deviations per median absolute deviation, of normally distributed values."""
DEVIATIONS = 8.0
LEAST_LOSS_DEVIATION = 0.01
"""Least standard deviation of losses, as a fraction of their median."""
LEAST_NORM_DEVIATION = 0.1
"""Least standard deviation of the logarithms of gradient norms."""
READ_BEHIND = 2
"""Step n is judged by the steps up to n - 2: it runs before the results of n - 1 are read."""


class Limits(NamedTuple):
    """The largest loss and gradient norm of a step that is no spike."""

    loss: float = math.inf
    grad_norm: float = math.inf

    def are_kept(self, loss: float, grad_norm: float) -> bool:
        """Returns whether the values of a step are finite and no spike."""
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        return is_finite and loss <= self.loss and grad_norm <= self.grad_norm


class Observation(NamedTuple):
    """The values of a finished step."""

    step: int
    loss: float
    grad_norm: float


class RecentSteps:
    """The last finite steps of a run, spikes included: the median does not mind a few of them.

    A run whose losses stay at a new level accepts it after half a window.
    """

    def __init__(self, observed: Iterable[tuple[int, float, float]] = ()) -> None:
        # Those that the next step must not be compared with are kept for later.
        self._steps = deque((Observation(*one) for one in observed), WINDOW + READ_BEHIND - 1)

    def add(self, step: int, loss: float, grad_norm: float) -> None:
        """Adds a finished step, unless its values are not finite."""
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self._steps.append(Observation(step, loss, grad_norm))

    @property
    def saved(self) -> tuple[tuple[int, float, float], ...]:
        """The steps, for a checkpoint: a run that resumes has the limits of one that did not."""
        return tuple(tuple(one) for one in self._steps)

    def limits(self, step: int) -> Limits:
        """Returns the limits of a step."""
        known = [one for one in self._steps if one.step <= step - READ_BEHIND][-WINDOW:]
        if len(known) < LEAST:
            return Limits()
        center, deviation = _robust([one.loss for one in known])
        deviation = max(deviation, LEAST_LOSS_DEVIATION * abs(center))
        return Limits(center + DEVIATIONS * deviation, _norm_limit(known))


def _norm_limit(known: Sequence[Observation]) -> float:
    """Returns the largest gradient norm that is no spike."""
    positive = [math.log(one.grad_norm) for one in known if one.grad_norm > 0]
    if len(positive) < LEAST:
        return math.inf
    center, deviation = _robust(positive)
    return math.exp(center + DEVIATIONS * max(deviation, LEAST_NORM_DEVIATION))


def _robust(values: Sequence[float]) -> tuple[float, float]:
    """Returns the median, and the standard deviation by the median absolute deviation."""
    center = median(values)
    return center, NORMAL * median(abs(value - center) for value in values)


class NotFiniteError(ArithmeticError):
    """A step's loss or gradient is not a finite number; its update was not applied."""


class SpikeError(ArithmeticError):
    """A step's loss or gradient norm is a spike, after which the run must stop."""


class RewindError(Exception):
    """The run must go back to its newest checkpoint, without the examples of a step."""

    def __init__(self, message: str, step: int) -> None:
        super().__init__(message)
        self.step = step
