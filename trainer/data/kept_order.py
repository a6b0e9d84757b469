"""The order of a source's examples without those that the run has excluded.

Later examples move up: the order is that of a run which never had the excluded ones, from the
first of them on. An exclusion holds for every later epoch, too.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import grain

from trainer.contract.storage.corpus import DataError


class KeptOrder(grain.MapDataset[int]):
    """An endless order of the numbers of `size` examples, epoch after epoch, without some of them.

    Each range of `excluded` has positions in the order that the earlier ranges leave.
    """

    def __init__(
        self, order: grain.MapDataset[int], size: int, excluded: Sequence[range] = ()
    ) -> None:
        """Raises DataError when no example is left."""
        super().__init__(order)
        self._size = size
        self._since: list[tuple[int, frozenset[int]]] = []
        """For each exclusion, its epoch (from 0), and the numbers that later epochs lack."""
        self._in_epoch: dict[int, dict[int, int]] = {}
        """Epoch -> position -> number, of what an exclusion removed in its own epoch."""
        self._forget()
        for positions in excluded:
            self._exclude(positions)

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: int):  # type: ignore[override]
        return self._parent[self._whole_index(index) if self._since else index]

    def epoch(self, index: int) -> int:
        """Returns the epoch (from 1) of an item."""
        return self._epoch(index) + 1

    def _exclude(self, positions: range) -> None:
        places = [self._whole_index(index) for index in positions]
        if not places:
            return
        numbers = [self._number(place) for place in places]
        epoch = places[0] // self._size
        here = self._in_epoch.setdefault(epoch, {})
        for place, number in zip(places, numbers, strict=True):
            if place // self._size == epoch:
                here[place % self._size] = number
        self._since.append((epoch, frozenset(numbers)))
        self._forget()
        left = self._size - len(frozenset().union(*(some for _, some in self._since)))
        if left < 1:
            raise DataError(
                f"all {self._size} examples of a source are excluded after spikes of the loss"
            )

    def _number(self, place: int) -> int:
        """Returns the number of the example at an index of the whole order."""
        number: Any = self._parent[place]
        return int(number)

    def _forget(self) -> None:
        self._starts = [0]
        """First index of each epoch, as far as they are known."""
        self._removed: dict[int, list[int]] = {}

    def _whole_index(self, index: int) -> int:
        """Returns the index of an item in the whole order."""
        epoch = self._epoch(index)
        removed = self._removed_in(epoch)
        within = index - self._starts[epoch] if self._since else index % self._size
        # Position p is after the k removed ones for which position - k <= within.
        before = bisect_right(range(len(removed)), within, key=lambda k: removed[k] - k)
        return epoch * self._size + within + before

    def _epoch(self, index: int) -> int:
        """Returns the epoch (from 0) of an item."""
        if not self._since:
            return index // self._size
        while self._starts[-1] <= index:
            epoch = len(self._starts) - 1
            self._starts.append(self._starts[-1] + self._size - len(self._numbers_without(epoch)))
        return bisect_right(self._starts, index) - 1

    def _earlier(self, epoch: int) -> frozenset[int]:
        """Returns the numbers that an epoch lacks because of earlier epochs."""
        return frozenset().union(*(some for since, some in self._since if since < epoch))

    def _numbers_without(self, epoch: int) -> frozenset[int]:
        """Returns the numbers that an epoch lacks."""
        return self._earlier(epoch) | frozenset(self._in_epoch.get(epoch, {}).values())

    def _removed_in(self, epoch: int) -> list[int]:
        """Returns the positions that an epoch lacks, ascending; finds them once for each epoch."""
        if epoch not in self._removed:
            own = self._in_epoch.get(epoch, {})
            found = sorted(own)
            if self._earlier(epoch):
                numbers, first = self._numbers_without(epoch), epoch * self._size
                found = [p for p in range(self._size) if self._number(first + p) in numbers]
            self._removed = {epoch: found}
        return self._removed[epoch]
