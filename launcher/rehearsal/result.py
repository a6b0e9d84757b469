"""The figures of many rehearsed runs. Pure."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Self

from launcher.core.states import RunState
from launcher.rehearsal.play import DAY_S, Outcome, Parts


@dataclass(frozen=True, kw_only=True)
class Percentiles:
    """How a figure varies over the draws (nearest rank). None where the run never gets that far."""

    p5: float | None
    p50: float | None
    p95: float | None
    mean: float | None
    """None when it is not known for every draw."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Self:
        """Returns the percentiles of some values, of which infinity means unknown."""
        ordered = sorted(values)

        def at(share: float) -> float | None:
            value = ordered[max(0, math.ceil(share * len(ordered)) - 1)]
            return value if math.isfinite(value) else None

        is_known = all(map(math.isfinite, values))
        mean = fmean(values) if is_known else None
        return cls(p5=at(0.05), p50=at(0.5), p95=at(0.95), mean=mean)


@dataclass(frozen=True, kw_only=True)
class Figures:
    """What rehearsals of one scenario show."""

    goodput: Percentiles
    """Share of the time in steps that counted."""
    days: Percentiles
    """Days until all steps of the job are done; beyond the rehearsed days, at the same pace."""
    dollars: Percentiles | None
    """The cost of all steps, spares included; null when the price of a chip is not known."""
    chip_hours: Percentiles
    """Chip-hours of all steps, spares included."""
    shares: Parts
    """Mean share of each part of the time; they add up to 1."""
    attempts: Percentiles
    """Attempts within the rehearsed days."""
    states: Mapping[str, int]
    """Number of draws by the state of the run at their end; `running`: the days were over first."""
    failures: Mapping[str, int]
    """Number of draws by the reason that the run gave up."""

    @property
    def price(self) -> float:
        """The mean cost of all steps in dollars, else chip-hours; infinity if some run fails."""
        mean = (self.dollars or self.chip_hours).mean
        return math.inf if mean is None else mean


def figures(outcomes: Sequence[Outcome], steps: int) -> Figures:
    """Returns the figures of rehearsed runs of a job with so many `steps`."""

    def whole(amount: Callable[[Outcome], float]) -> Percentiles:
        return Percentiles.of([_for_all_steps(one, amount(one), steps) for one in outcomes])

    is_priced = all(one.usage.cost is not None for one in outcomes)
    failed = [one for one in outcomes if one.state is RunState.FAILED]
    return Figures(
        goodput=Percentiles.of([one.goodput for one in outcomes]),
        days=whole(lambda one: one.wall_s / DAY_S),
        dollars=whole(lambda one: one.usage.dollars) if is_priced else None,
        chip_hours=whole(lambda one: one.usage.chip_hours),
        shares=_mean_shares(outcomes),
        attempts=Percentiles.of([float(one.attempts) for one in outcomes]),
        states=dict(sorted(Counter(str(one.state) for one in outcomes).items())),
        failures=dict(Counter(_kind(one.reason) for one in failed).most_common()),
    )


def _for_all_steps(one: Outcome, amount: float, steps: int) -> float:
    """Returns an amount for all steps at the pace of a draw; infinity for one that gave up."""
    if one.state is RunState.FINISHED:
        return amount
    if one.state is not RunState.RUNNING or one.steps == 0:
        return math.inf
    return amount * max(1.0, steps / one.steps)


def _kind(reason: str) -> str:
    """Returns the part of a reason that does not name the host of the last fault."""
    why, _, rest = reason.partition(" Before that: ")
    return why if rest else reason


def _mean_shares(outcomes: Sequence[Outcome]) -> Parts:
    shares = [
        {name: seconds / one.wall_s for name, seconds in asdict(one.parts).items()}
        for one in outcomes
        if one.wall_s
    ]
    return Parts(**{name: fmean(share[name] for share in shares) for name in shares[0]})
