"""Which losses and gradient norms are spikes, by the run's own last steps. Pure.

The level of a step is the median of the steps before it. A value is a spike when it is further
above its level than usual, by more than some robust standard deviations: 1.4826 times the median
absolute deviation of the last steps from their own levels. A falling loss, or a few spikes among
the steps, hardly changes these. Gradient norms are compared by their logarithm: their noise is a
factor. Every process computes the same limits, because all have the same numbers.

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

LEVEL = 16
"""Number of steps whose median is the level of a step."""
WINDOW = 128
"""Number of last steps whose deviations a step is compared with."""
LEAST = 32
"""Fewest deviations to compare with: the first 50 steps of a run have no limits."""
NORMAL = 1.4826
"""Standard deviations per median absolute deviation, of normally distributed values."""
LOSS_DEVIATIONS, NORM_DEVIATIONS = 8.0, 12.0
"""Standard deviations above the level from which a value is a spike. Norms have heavier tails."""
LEAST_LOSS_DEVIATION = 0.01
"""Least standard deviation of losses, as a fraction of their level."""
LEAST_NORM_DEVIATION = 0.05
"""Least standard deviation of the logarithms of gradient norms."""
READ_BEHIND = 2
"""Step n is judged by the steps up to n - 2: it runs before the results of n - 1 are read."""
SMALLEST_NORM = 1e-30
"""A gradient norm below it counts as it: the logarithm of 0 is not finite."""
LARGEST_LOG = 80.0
"""Largest logarithm of a limit, which stays a float32."""


class Limits(NamedTuple):
    """The largest loss and gradient norm of a step that is no spike."""

    loss: float = math.inf
    grad_norm: float = math.inf

    def are_kept(self, loss: float, grad_norm: float) -> bool:
        """Returns whether the values of a step are finite and no spike."""
        is_finite = math.isfinite(loss) and math.isfinite(grad_norm)
        return is_finite and loss <= self.loss and grad_norm <= self.grad_norm


class Observation(NamedTuple):
    """The values of a finished step, and their deviations from the level before it."""

    step: int
    loss: float
    log_norm: float
    """Logarithm of the gradient norm."""
    deviations: tuple[float, float] | None
    """Loss and logarithm of the norm above their level; None for the first steps of a run."""


class RecentSteps:
    """The last finite steps of a run, spikes included: a few of them hardly change the medians.

    A run whose losses stay at a new level accepts it after half of LEVEL steps.
    """

    def __init__(self, observed: Iterable[tuple[int, float, float]] = ()) -> None:
        # Enough for the deviations of the next step's whole window.
        self._steps = deque[Observation](maxlen=WINDOW + LEVEL + READ_BEHIND)
        for step, loss, log_norm in observed:
            self._append(step, loss, log_norm)

    def add(self, step: int, loss: float, grad_norm: float) -> None:
        """Adds a finished step, unless its values are not finite."""
        if math.isfinite(loss) and math.isfinite(grad_norm):
            self._append(step, loss, math.log(max(grad_norm, SMALLEST_NORM)))

    @property
    def saved(self) -> tuple[tuple[int, float, float], ...]:
        """Step, loss and logarithm of the norm, for a checkpoint.

        A run that resumes with them has the limits of a run that did not stop.
        """
        return tuple(one[:3] for one in self._steps)

    def limits(self, step: int) -> Limits:
        """Returns the limits of a step."""
        known = self._known(step)
        usual = [one.deviations for one in known[-WINDOW:] if one.deviations]
        if len(usual) < LEAST:
            return Limits()
        level_loss, level_norm = _level(known)
        loss, loss_deviation = _robust([loss for loss, _ in usual])
        norm, norm_deviation = _robust([norm for _, norm in usual])
        loss_deviation = max(loss_deviation, LEAST_LOSS_DEVIATION * abs(level_loss))
        norm_deviation = max(norm_deviation, LEAST_NORM_DEVIATION)
        # While the loss falls, values lie below their level. That must not lower the limit.
        log_norm = level_norm + max(norm, 0.0) + NORM_DEVIATIONS * norm_deviation
        return Limits(
            level_loss + max(loss, 0.0) + LOSS_DEVIATIONS * loss_deviation,
            math.exp(min(log_norm, LARGEST_LOG)),
        )

    def _append(self, step: int, loss: float, log_norm: float) -> None:
        known, deviations = self._known(step), None
        if len(known) >= LEVEL:
            level_loss, level_norm = _level(known)
            deviations = loss - level_loss, log_norm - level_norm
        self._steps.append(Observation(step, loss, log_norm, deviations))

    def _known(self, step: int) -> list[Observation]:
        """Returns the steps that a step may be compared with."""
        return [one for one in self._steps if one.step <= step - READ_BEHIND]


def _level(known: Sequence[Observation]) -> tuple[float, float]:
    """Returns the median loss and logarithm of the norm of the last steps."""
    last = known[-LEVEL:]
    return median(one.loss for one in last), median(one.log_norm for one in last)


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
