"""A job's tokens: one corpus, or a mixture of several."""

import hashlib
from dataclasses import dataclass

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
    """Corpora that are mixed by weights; each is cut into sequences separately."""

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


def load(data: Data, progress: Progress = lambda done, total, builder: None) -> Tokens | Mixture:
    """Returns the tokens, from the caches or tokenized now. Raises corpus.DataError."""
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
    """Raises corpus.DataError when a source has fewer sequences than its share of a batch."""
    for part, weight, name in zip(tokens.parts, tokens.weights, tokens.names, strict=True):
        rows = -(-data.global_batch * weight // sum(tokens.weights))
        try:
            token_cache.check(part, data.model_copy(update={"global_batch": rows}))
        except DataError as error:
            raise DataError(f"{name}: {error}" if name else str(error)) from None


def _hash(several: list[str]) -> str:
    return hashlib.sha256("\0".join(several).encode()).hexdigest()
