"""The documents in a corpus's files: whole files, or their records.

Documents whose names have a hash below a threshold are held out for evaluation.
"""

import gzip
import hashlib
import os
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, cast

import numpy as np

from trainer.contract.config.data import Data
from trainer.contract.storage.corpus import DataError, File, files, reading
from trainer.contract.storage.retries import Patience
from trainer.data import readers
from trainer.data.chat import Chats, Conversation
from trainer.data.preference import Pair, Preferences
from trainer.data.readers import BadRecordError, array_records, parquet_rows
from trainer.data.tokenizer import Span

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


Content = bytes | Conversation | Pair | str | readers.BadRecordError
"""A text, or the reason (str or BadRecordError) that it is missing."""


class Position(NamedTuple):
    """A position between two documents of a corpus."""

    file: int
    """Number of finished files."""
    line: int
    """Number of finished lines in the next file."""
    read: int
    """Bytes of the corpus's files read so far."""


START = Position(0, 0, 0)


class Document(NamedTuple):
    name: str
    """The same on every host; a record's name ends with its line number, from 1."""
    text: bytes
    end: Position
    answers: tuple[Span, ...] | None = None
    """Start and end of each learned part of the text, in bytes; None: all is learned."""
    rejected: Conversation | None = None
    """The second text of a pair, whose first is the chosen one; None for other documents."""

    @property
    def place(self) -> tuple[int, int]:
        """The number of its file, and its line there, from 1; 0 for a file that is a document."""
        return self.end.file - (not self.end.line), self.end.line


@dataclass
class BadRecords:
    """The records that are left out, with file, line and reason."""

    allowed: int
    found: list[str] = field(default_factory=list)

    def add(self, one: str) -> None:
        """Adds a record. Raises DataError when more are left out than allowed."""
        self.found.append(one)
        self.check()

    @contextmanager
    def left_out(self, place: str) -> Iterator[None]:
        """Adds a record whose use raises BadRecordError. Raises DataError as `add` does."""
        try:
            yield
        except BadRecordError as error:
            self.add(f"{place}: {error}")

    def check(self) -> None:
        """Raises DataError when more records are left out than allowed."""
        if len(self.found) > self.allowed:
            raise DataError(
                f"{self}. data.max_bad_records allows {self.allowed}: "
                "fix the records or raise the limit"
            )

    def __str__(self) -> str:
        first = self.found[-1] if len(self.found) > self.allowed else self.found[0]
        plural = "s" * (len(self.found) > 1)
        return f"{len(self.found):,} bad record{plural}, for example {first}"


def documents(data: Data, bad: BadRecords, start: Position = START) -> Iterator[Document]:
    """Yields all documents from `start` on, in the same order on every host. Raises DataError."""
    every = files(data)
    before = sum(file.size for file in every[: start.file])
    for number, file in enumerate(every[start.file :], start.file):
        over = start.line if number == start.file else 0
        for line, found, read in _retried(file, data, over):
            name = f"{file.name}:{line}" if line else file.name
            end = Position(number + (not line), line, before + read)
            match found:
                case bytes():
                    yield Document(name, found, end)
                case Conversation():
                    yield Document(name, found.text, end, found.answers)
                case Pair(chosen, rejected):
                    yield Document(name, chosen.text, end, chosen.answers, rejected)
                case why:
                    bad.add(f"{file.path}:{line}: {why}")
        before += file.size


def _retried(file: File, data: Data, over: int) -> Iterator[tuple[int, Content, int]]:
    """Yields the records of a file. After a storage failure, reading resumes after the last one."""
    patience = Patience(str(file.path))
    while True:
        try:
            for record in _records(file, data, over):
                patience.renew()
                yield record
                over = record[0]
                if not over:  # the file was one document
                    return
            return
        except Exception as error:
            patience.wait(error)


def _records(file: File, data: Data, over: int) -> Iterator[tuple[int, Content, int]]:
    """Yields (line, content, bytes of the file read so far) for the records after `over` lines.

    The line of a file that is one document is 0.
    """
    if data.source in ("parquet", "array_record"):
        rows = parquet_rows(file, data.text_field, over)
        if data.source == "array_record":
            rows = array_records(file, over)
        for line, text, share in rows:
            yield line, text, int(share * file.size)
        return
    with reading(file) as raw, unpacked(file, raw) as opened:
        if data.source in ("jsonl", "chat", "preference"):
            for line, found in readers.lines(opened, _reader(data), over):
                yield line, found, raw.tell()
        else:
            yield 0, opened.read(), raw.tell()


def _reader(data: Data) -> Callable[[readers.Record], bytes | Conversation | Pair]:
    if data.source == "chat":
        return Chats(data).read
    if data.source == "preference":
        return Preferences(data).read
    return lambda record: readers.text(record, data.text_field).encode()


@contextmanager
def unpacked(file: File, raw: BinaryIO) -> Iterator[BinaryIO]:
    """Decompresses a file by its suffix. Raises DataError when it is truncated or corrupt."""
    try:
        match file.path.suffix:
            case ".gz":
                with gzip.open(raw) as opened:
                    yield cast(BinaryIO, opened)
            case ".zst":
                with zstd.open(raw) as opened:
                    yield cast(BinaryIO, opened)
            case _:
                yield raw
    except (EOFError, gzip.BadGzipFile, zlib.error, zstd.ZstdError) as error:
        raise DataError(f"data.path: {file.path} cannot be decompressed: {error}") from None


def hash_to_unit(names: Iterable[str]) -> np.ndarray:
    """Returns a hash in [0, 1) for each name, which depends on the name alone."""
    return np.array([_hash_to_unit(name) for name in names], np.float64)


@dataclass
class HeldOut:
    """The held-out share of the documents; the hashes of their names are added in several calls.

    A new document moves no other one between training and evaluation. One exception: each of the
    two has at least one document when the corpus has two or more.
    """

    share: float
    documents: int = 0
    below: int = 0
    lowest: float = 1.0
    highest: float = 0.0

    def add(self, hashes: np.ndarray) -> None:
        """Adds the hashes of more documents' names."""
        self.documents += len(hashes)
        self.below += int(np.sum(hashes < self.share))
        self.lowest = min(self.lowest, hashes.min(initial=1.0))
        self.highest = max(self.highest, hashes.max(initial=0.0))

    @property
    def threshold(self) -> float:
        """The hash below which documents are held out; valid when all hashes are added."""
        if self.share == 0 or self.documents < 2:
            return 0.0
        if self.below == 0:
            return float(np.nextafter(self.lowest, 1.0))
        return self.highest if self.below == self.documents else self.share


def _hash_to_unit(name: str) -> float:
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") / 2**64
