"""The documents of a corpus's files: whole files, or their records.

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
from trainer.data.readers import array_records, parquet_rows
from trainer.data.tokenizer import Span

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


Found = bytes | Conversation | str | readers.BadRecordError
"""A text, or why there is none."""


class Position(NamedTuple):
    """Between two documents of a corpus."""

    file: int
    """Files that are over."""
    line: int
    """Lines of the next one that are over."""
    read: int
    """Bytes of the corpus's files that are read so far."""


START = Position(0, 0, 0)


class Document(NamedTuple):
    name: str
    """The same on every host; of a record with the number of its line, from 1."""
    text: bytes
    end: Position
    answers: tuple[Span, ...] | None = None
    """Where what is learned begins and ends in the text; None: all is."""


@dataclass
class BadRecords:
    """Those that are left out, with file, line and reason."""

    allowed: int
    found: list[str] = field(default_factory=list)

    def add(self, one: str) -> None:
        """Raises DataError where they are more than allowed."""
        self.found.append(one)
        self.check()

    def check(self) -> None:
        """Raises DataError where they are more than allowed."""
        if len(self.found) > self.allowed:
            raise DataError(
                f"{self}. data.max_bad_records: {self.allowed} are left out at most: "
                "mend the records, or allow more"
            )

    def __str__(self) -> str:
        first = self.found[-1] if len(self.found) > self.allowed else self.found[0]
        return f"{len(self.found):,} bad record{'s' * (len(self.found) > 1)}, as {first}"


def documents(data: Data, bad: BadRecords, start: Position = START) -> Iterator[Document]:
    """All from `start` on, in one order on every host. Raises DataError."""
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
                case why:
                    bad.add(f"{file.path}:{line}: {why}")
        before += file.size


def _retried(file: File, data: Data, over: int) -> Iterator[tuple[int, Found, int]]:
    """The records of a file. After trouble of the storage it is read on behind the last record."""
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


def _records(file: File, data: Data, over: int) -> Iterator[tuple[int, Found, int]]:
    """Those behind `over` lines: line, what is there, and bytes of the file so far.

    A file that is one document has no lines.
    """
    if data.source in ("parquet", "array_record"):
        rows = parquet_rows(file, data.text_field, over)
        if data.source == "array_record":
            rows = array_records(file, over)
        for line, text, share in rows:
            yield line, text, int(share * file.size)
        return
    with reading(file) as raw, unpacked(file, raw) as opened:
        if data.source in ("jsonl", "chat"):
            for line, found in readers.lines(opened, _reader(data), over):
                yield line, found, raw.tell()
        else:
            yield 0, opened.read(), raw.tell()


def _reader(data: Data) -> Callable[[readers.Record], bytes | Conversation]:
    if data.source == "chat":
        return Chats(data).read
    return lambda record: readers.text(record, data.text_field).encode()


@contextmanager
def unpacked(file: File, raw: BinaryIO) -> Iterator[BinaryIO]:
    """What the file holds, by the end of its name. Raises DataError where it is torn."""
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
        raise DataError(f"data.path: {file.path} cannot be unpacked: {error}") from None


def places(names: Iterable[str]) -> np.ndarray:
    """A number in [0, 1) for each, that the name alone decides."""
    return np.array([_place(name) for name in names], np.float64)


@dataclass
class HeldOut:
    """A share of the documents, told part by part.

    A new document moves no other one between the parts, except that each part has at least one
    document where there are two.
    """

    share: float
    documents: int = 0
    below: int = 0
    lowest: float = 1.0
    highest: float = 0.0

    def add(self, some: np.ndarray) -> None:
        """The places of more documents."""
        self.documents += len(some)
        self.below += int(np.sum(some < self.share))
        self.lowest = min(self.lowest, some.min(initial=1.0))
        self.highest = max(self.highest, some.max(initial=0.0))

    @property
    def threshold(self) -> float:
        """Documents with places below it are held out; ask when all have been told."""
        if self.share == 0 or self.documents < 2:
            return 0.0
        if self.below == 0:
            return float(np.nextafter(self.lowest, 1.0))
        return self.highest if self.below == self.documents else self.share


def _place(name: str) -> float:
    return int.from_bytes(hashlib.sha256(os.fsencode(name)).digest()[:8], "big") / 2**64
