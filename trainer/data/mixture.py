"""Whose turn it is in a mixture: each source at every moment has had its share to within one.

Turns repeat after as many items as the weights' sum, so that any item is reached at once. In a
period each source's next turn has a first and a last place that keep it within one of its share;
of those whose first place has come, the one whose last place is nearest takes it. One item after
the other, that meets every last place that can be met, and here all can.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import grain

from trainer.contract.config.data import Data, TrainTokenizer
from trainer.contract.storage import corpus
from trainer.contract.storage.corpus import DataError
from trainer.data import token_cache, train_tokenizer
from trainer.data.cache_lock import Progress
from trainer.data.documents import BadRecords
from trainer.data.token_cache import Tokens
from trainer.data.tokenizer import Tokenizer


@dataclass(frozen=True)
class Mixture:
    """Corpora that are mixed by weights; each is cut into sequences by itself."""

    parts: tuple[Tokens, ...]
    weights: tuple[int, ...]
    names: tuple[str, ...]

    @property
    def corpus_sha256(self) -> str:
        return _hash([part.corpus_sha256 for part in self.parts])

    @property
    def tokenizer(self) -> Tokenizer:
        return self.parts[0].tokenizer

    @property
    def trained(self) -> str:
        return self.parts[0].trained

    @property
    def bad(self) -> BadRecords:
        found = [one for part in self.parts for one in part.bad.found]
        return BadRecords(sum(part.bad.allowed for part in self.parts), found)

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    def sequences(self, seq_len: int) -> int:
        return sum(part.sequences(seq_len) for part in self.parts)


def load(data: Data, progress: Progress = lambda done, total, maker: None) -> Tokens | Mixture:
    """From the caches or tokenized now. Raises corpus.DataError."""
    if data.mixture is None:
        return token_cache.load(data, progress)
    trained, parts = "", data.parts
    if isinstance(data.tokenizer, TrainTokenizer):
        trained = train_tokenizer.load(
            parts, _hash([corpus.digest(part) for part in parts]), progress
        )
    return Mixture(
        tuple(token_cache.load(part, progress, trained) for part in parts),
        tuple(source.weight for source in data.mixture),
        tuple(source.shown for source in data.mixture),
    )


def check(tokens: Tokens | Mixture, data: Data) -> None:
    """Raises corpus.DataError where the data cannot serve the job."""
    for part, weight, name in zip(tokens.parts, tokens.weights, tokens.names, strict=True):
        rows = -(-data.global_batch * weight // sum(tokens.weights))
        try:
            token_cache.check(part, data.model_copy(update={"global_batch": rows}))
        except DataError as error:
            raise DataError(f"{name}: {error}" if name else str(error)) from None


def _hash(several: list[str]) -> str:
    return hashlib.sha256("\0".join(several).encode()).hexdigest()


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
