"""Deterministic weighted interleaving: every prefix is within one item of each source's share.

This is the chairman assignment problem, solved by earliest deadline first. The order repeats after
as many items as the sum of the weights, so any item is reached directly. In a period, each source's
next item has a first and a last position that keep the source within one item of its share. Among
the sources whose first position has come, the one with the nearest last position is next. This
meets every last position that can be met, and here all of them can.

References:
    R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980), 323-330.
    First and last positions: S. Baruah et al., "Proportionate progress: a notion of fairness in
    resource allocation", Algorithmica, 1996.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import grain


class Interleaver:
    """Interleaves sources with integer weights."""

    def __init__(self, weights: Sequence[int]) -> None:
        divisor = math.gcd(*weights)
        self._weights = [weight // divisor for weight in weights]
        self._counts = [[0] * len(weights)]
        """Number of each source's items before each item of a period."""
        self._sources = list[int]()
        for position in range(sum(self._weights)):
            source = self._next(position)
            self._sources.append(source)
            counts = list(self._counts[-1])
            counts[source] += 1
            self._counts.append(counts)

    def of(self, item: int) -> tuple[int, int]:
        """Returns the source of an item, and the number of that source's items before it."""
        periods, position = divmod(item, len(self._sources))
        source = self._sources[position]
        return source, periods * self._weights[source] + self._counts[position][source]

    def before(self, item: int) -> list[int]:
        """Returns the number of each source's items before `item`."""
        periods, position = divmod(item, len(self._sources))
        pairs = zip(self._weights, self._counts[position], strict=True)
        return [periods * weight + count for weight, count in pairs]

    def _next(self, position: int) -> int:
        period = sum(self._weights)
        taken = enumerate(zip(self._weights, self._counts[-1], strict=True))
        ready = [
            (-(-(count + 1) * period // weight), source)
            for source, (weight, count) in taken
            if count * period // weight <= position
        ]
        return min(ready)[1]


class Mixed(grain.MapDataset):
    """Interleaved items of several sources; the second's are numbered after the first's."""

    def __init__(
        self, orders: Sequence[Any], sizes: Sequence[int], interleaver: Interleaver
    ) -> None:
        super().__init__(orders)
        self._firsts = [0, *accumulate(sizes)]
        self._interleaver = interleaver

    def __len__(self) -> int:
        return min(len(order) for order in self.parents)

    def __getitem__(self, index: int):  # type: ignore[override]
        source, count = self._interleaver.of(index)
        number: Any = self._parents[source][count]
        return self._firsts[source] + number
