"""The curves of a run, thinned out to a bounded number of points."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

DIGITS = 6
"""Significant digits of a value on the page."""


@dataclass(frozen=True)
class Curve:
    """The values of one metric over the steps of a run; None where a value is not finite."""

    steps: Sequence[int]
    values: Sequence[float | None]

    @classmethod
    def of(cls, lines: Iterable[Mapping[str, Any]], name: str) -> "Curve":
        """Returns the curve of a metric. Leaves out lines without it."""
        points = [(line["step"], line[name]) for line in lines if _is_number(line.get(name))]
        values = [value if isfinite(value) else None for _, value in points]
        return cls([step for step, _ in points], values)

    @property
    def known(self) -> list[float]:
        """The finite values."""
        return [value for value in self.values if value is not None]

    def thinned(self, limit: int) -> "Curve":
        """Returns at most `limit` of the points, the extremes among them; see `kept`."""
        indexes = kept(self.values, limit)
        return Curve([self.steps[i] for i in indexes], [self.values[i] for i in indexes])

    def as_json(self) -> list[list[Any]]:
        """Returns the steps and the values, rounded."""
        rounded = [None if v is None else float(f"{v:.{DIGITS}g}") for v in self.values]
        return [list(self.steps), rounded]

    def percentile(self, percent: int) -> float | None:
        """Returns a percentile of the finite values; None without any."""
        known = self.known
        if len(known) < 2:
            return known[0] if known else None
        return statistics.quantiles(known, n=100, method="inclusive")[percent - 1]


def kept(values: Sequence[float | None], limit: int) -> Sequence[int]:
    """Returns the indexes of at most `limit` values, at least 4, in order.

    They include the first value, the last one, and the smallest and largest value of each of
    `limit / 2 - 1` equal ranges. So the drawn curve covers the same area as one of all points.
    """
    count = len(values)
    if count <= limit:
        return range(count)
    ranges = limit // 2 - 1
    chosen = {0, count - 1}
    for number in range(ranges):
        part = range(number * count // ranges, (number + 1) * count // ranges)
        known = [(value, i) for i in part if (value := values[i]) is not None]
        chosen |= {min(known)[1], max(known)[1]} if known else {part[0]}
    return sorted(chosen)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
