"""Text as tokens and back: bytes, or what a `tokenizer.json` says, given or trained."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Protocol

import numpy as np

from trainer.spec.job import BYTES as BYTES_NAME
from trainer.spec.job import Data, Trained
from trainer.spec.vocabulary import OF_BYTES, Vocabulary, vocabulary


class Tokenizer(Protocol):
    separator: int
    """Stands before every document."""
    dtype: type
    """Of numpy: wide enough for every id."""

    def encode(self, text: bytes) -> np.ndarray:
        """The separator, then the tokens of a text."""
        ...

    def encode_all(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        """Each of them, on all cores where that is faster."""
        ...

    def decode(self, tokens: Iterable[int]) -> str:
        """Text up to the first separator; what is no UTF-8 is shown as a replacement sign."""
        ...


class Bytes:
    """0 to 255 are the bytes, 256 stands before every document."""

    separator = OF_BYTES.separator
    dtype = np.uint16

    def encode(self, text: bytes) -> np.ndarray:
        tokens = np.empty(len(text) + 1, self.dtype)
        tokens[0] = self.separator
        tokens[1:] = np.frombuffer(text, np.uint8)
        return tokens

    def encode_all(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        return map(self.encode, texts)

    def decode(self, tokens: Iterable[int]) -> str:
        text = bytes(takewhile(_is_byte, tokens))
        return text.decode("utf-8", errors="replace")


def _is_byte(token: int) -> bool:
    return token < OF_BYTES.separator


class FromFile:
    """A tokenizer of Hugging Face's, without the special tokens that its template would add.

    A text that is no UTF-8 is read with replacement signs.
    """

    def __init__(self, content: str, found: Vocabulary) -> None:
        from tokenizers import Tokenizer as Rust

        self._rust = Rust.from_str(content)
        self._rust.no_truncation()
        self._rust.no_padding()
        self.separator = found.separator
        self.dtype = np.uint16 if found.size <= 1 << 16 else np.uint32

    def encode(self, text: bytes) -> np.ndarray:
        (tokens,) = self.encode_all([text])
        return tokens

    def encode_all(self, texts: Sequence[bytes]) -> Iterator[np.ndarray]:
        decoded = [text.decode("utf-8", errors="replace") for text in texts]
        for encoded in self._rust.encode_batch_fast(decoded, add_special_tokens=False):
            yield np.array([self.separator, *encoded.ids], self.dtype)

    def decode(self, tokens: Iterable[int]) -> str:
        return self._rust.decode(list(takewhile(lambda token: token != self.separator, tokens)))


BYTES = Bytes()


def of(data: Data, trained: str = "") -> Tokenizer:
    """The job's; `trained` is the file of one that was trained. Raises VocabularyError."""
    if data.tokenizer == BYTES_NAME:
        return BYTES
    found = vocabulary(data)
    if not isinstance(data.tokenizer, Trained):
        return FromFile(Path(data.tokenizer).expanduser().read_text(encoding="utf-8"), found)
    assert trained, "made before the tokens are"
    return FromFile(trained, found)
