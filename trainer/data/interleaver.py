"""Whose turn it is in a mixture: each source at every moment has had its share to within one.

Turns repeat after as many items as the weights' sum, so that any item is reached at once. In a
period each source's next turn has a first and a last place that keep it within one of its share;
of those whose first place has come, the one whose last place is nearest takes it. One item after
the other, that meets every last place that can be met, and here all can.
"""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import grain


class Interleaver:
    """Of sources with whole weights."""

    def __init__(self, weights: Sequence[int]) -> None:
        divisor = math.gcd(*weights)
        self._weights = [weight // divisor for weight in weights]
        self._counts = [[0] * len(weights)]
        """Turns of each source before each item of a period."""
        self._sources = list[int]()
        for place in range(sum(self._weights)):
            source = self._next(place)
            self._sources.append(source)
            counts = list(self._counts[-1])
            counts[source] += 1
            self._counts.append(counts)

    def of(self, item: int) -> tuple[int, int]:
        """The source of an item, and how many turns it had before."""
        periods, place = divmod(item, len(self._sources))
        source = self._sources[place]
        return source, periods * self._weights[source] + self._counts[place][source]

    def before(self, item: int) -> list[int]:
        """How many turns each source has had before an item."""
        periods, place = divmod(item, len(self._sources))
        pairs = zip(self._weights, self._counts[place], strict=True)
        return [periods * weight + count for weight, count in pairs]

    def _next(self, place: int) -> int:
        period = sum(self._weights)
        taken = enumerate(zip(self._weights, self._counts[-1], strict=True))
        ready = [
            (-(-(count + 1) * period // weight), source)
            for source, (weight, count) in taken
            if count * period // weight <= place
        ]
        return min(ready)[1]


class Mixed(grain.MapDataset):
    """The items of several sources in turns; those of the second are numbered after the first's."""

    def __init__(self, orders: Sequence[Any], sizes: Sequence[int], turns: Interleaver) -> None:
        super().__init__(orders)
        self._firsts = [0, *accumulate(sizes)]
        self._turns = turns

    def __len__(self) -> int:
        return min(len(order) for order in self.parents)

    def __getitem__(self, index: int):  # type: ignore[override]
        source, turn = self._turns.of(index)
        number: Any = self._parents[source][turn]
        return self._firsts[source] + number
