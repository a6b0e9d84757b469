"""Converts text to tokens and back: as bytes, or with a given or trained `tokenizer.json`."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Protocol

import numpy as np

from trainer.contract.config.data import BYTES as BYTES_NAME
from trainer.contract.config.data import Data, TrainTokenizer
from trainer.contract.storage.retries import retried
from trainer.contract.storage.tokenizer_info import OF_BYTES, Vocabulary, vocabulary

Span = tuple[int, int]
"""Start and end of a part of a text, in bytes."""


class Tokenizer(Protocol):
    eos_id: int
    """The token before every document."""
    dtype: type
    """A numpy dtype that is wide enough for every id."""

    def encode(self, text: bytes) -> np.ndarray:
        """Returns the separator, then the tokens of a text."""
        ...

    def encode_all(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        """Encodes each text, on all cores where that is faster."""
        ...

    def encode_with_template(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        """Encodes each text with the special tokens that Hugging Face adds by default."""
        ...

    def encode_answers(
        self, texts: Sequence[bytes], answers: Sequence[Sequence[Span]]
    ) -> Iterator[np.ndarray]:
        """Encodes each text as int32, with ~token for tokens that do not begin in an answer."""
        ...

    def decode(self, tokens: Iterable[int]) -> str:
        """Returns the text before the first separator; invalid UTF-8 becomes U+FFFD."""
        ...


class Bytes:
    """A byte tokenizer: 0 to 255 are the bytes, 256 precedes every document."""

    eos_id = OF_BYTES.eos_id
    dtype = np.uint16

    def encode(self, text: bytes) -> np.ndarray:
        tokens = np.empty(len(text) + 1, self.dtype)
        tokens[0] = self.eos_id
        tokens[1:] = np.frombuffer(text, np.uint8)
        return tokens

    def encode_all(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        return map(self.encode, texts)

    def encode_with_template(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        return self.encode_all(texts)

    def encode_answers(
        self, texts: Sequence[bytes], answers: Sequence[Sequence[Span]]
    ) -> Iterator[np.ndarray]:
        for text, spans in zip(texts, answers, strict=True):
            yield _marked(self.encode(text), np.arange(len(text)), spans)

    def decode(self, tokens: Iterable[int]) -> str:
        text = bytes(takewhile(_is_byte, tokens))
        return text.decode("utf-8", errors="replace")


def _is_byte(token: int) -> bool:
    return token < OF_BYTES.eos_id


class FromFile:
    """A Hugging Face tokenizer, mostly without the special tokens that its template would add.

    Invalid UTF-8 in a text is read as U+FFFD.
    """

    def __init__(self, content: str, found: Vocabulary) -> None:
        from tokenizers import Tokenizer as Rust

        self._rust = Rust.from_str(content)
        self._rust.no_truncation()
        self._rust.no_padding()
        self._template = self._rust.post_processor
        # It would trim spaces from the offsets of tokens.
        self._rust.post_processor = None
        self.eos_id, self._eos_token = found.eos_id, found.eos_token
        self.dtype = np.uint16 if found.size <= 1 << 16 else np.uint32

    def encode(self, text: bytes) -> np.ndarray:
        (tokens,) = self.encode_all([text])
        return tokens

    def encode_all(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        decoded = list(map(_decoded, texts))
        for encoded in self._rust.encode_batch_fast(decoded, add_special_tokens=False):
            yield np.array([self.eos_id, *encoded.ids], self.dtype)

    def encode_with_template(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        decoded = list(map(_decoded, texts))
        found = self._rust.encode_batch(decoded, add_special_tokens=False)
        for text, encoded in zip(decoded, found, strict=True):
            # The harness adds no separator to a text that begins with one.
            if self._template and not text.startswith(self._eos_token):
                encoded = self._template.process(encoded, None, True)
            yield np.array(encoded.ids, self.dtype)

    def encode_answers(
        self, texts: Sequence[bytes], answers: Sequence[Sequence[Span]]
    ) -> Iterator[np.ndarray]:
        found = self._rust.encode_batch(list(map(_decoded, texts)), add_special_tokens=False)
        for text, spans, encoded in zip(texts, answers, found, strict=True):
            in_characters = [(len(_decoded(text[:a])), len(_decoded(text[:b]))) for a, b in spans]
            begins = np.array([begin for begin, _ in encoded.offsets])
            yield _marked(np.array([self.eos_id, *encoded.ids]), begins, in_characters)

    def decode(self, tokens: Iterable[int]) -> str:
        return self._rust.decode(list(takewhile(lambda token: token != self.eos_id, tokens)))


def _decoded(text: bytes) -> str:
    return text.decode("utf-8", errors="replace")


def _marked(tokens: np.ndarray, begins: np.ndarray, spans: Iterable[Span]) -> np.ndarray:
    """Returns ~token for tokens that begin outside `spans`; the separator is always learned."""
    is_learned = np.zeros(len(tokens), bool)
    is_learned[0] = True
    for start, stop in spans:
        is_learned[1:] |= (begins >= start) & (begins < stop)
    tokens = tokens.astype(np.int32)
    return np.where(is_learned, tokens, ~tokens)


BYTES = Bytes()


def of(data: Data, trained: str = "") -> Tokenizer:
    """Returns the job's tokenizer; `trained` is a trained one's file. Raises VocabularyError."""
    if data.tokenizer == BYTES_NAME:
        return BYTES
    found = vocabulary(data)
    if not isinstance(data.tokenizer, TrainTokenizer):
        path = Path(data.tokenizer).expanduser()
        return FromFile(retried(str(path), lambda: path.read_text(encoding="utf-8")), found)
    assert trained, "the tokenizer is trained before the corpus is tokenized"
    return FromFile(trained, found)
