"""The documents of a corpus's files: whole files, or their records."""

import gzip
import json
import os
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import BinaryIO, NamedTuple, cast

from trainer.data.containers import array_records, parquet_rows
from trainer.spec.corpus import DataError, File, files, reading
from trainer.spec.job import Data

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd


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
    found = files(data)
    before = sum(file.path.stat().st_size for file in found[: start.file])
    for number, file in enumerate(found[start.file :], start.file):
        over = start.line if number == start.file else 0
        for line, text, read in _records(file, data, over):
            if isinstance(text, bytes):
                name = f"{file.name}:{line}" if line else file.name
                yield Document(name, text, Position(number + (not line), line, before + read))
            else:
                bad.add(f"{file.path}:{line}: {text}")
        before += file.path.stat().st_size


def _records(file: File, data: Data, over: int) -> Iterator[tuple[int, bytes | str, int]]:
    """Those behind `over` lines: line, text or why it has none, and bytes of the file so far.

    A file that is one document has no lines.
    """
    if data.source in ("parquet", "array_record"):
        with reading(file) as raw:
            size = os.fstat(raw.fileno()).st_size
        rows = (
            parquet_rows(file.path, data.text_field, over)
            if data.source == "parquet"
            else array_records(file.path, over)
        )
        for line, text, share in rows:
            yield line, text, int(share * size)
        return
    with reading(file) as raw, _unpacked(file, raw) as opened:
        if data.source == "jsonl":
            for line, text in _lines(opened, data.text_field, over):
                yield line, text, raw.tell()
        else:
            yield 0, opened.read(), raw.tell()


def _lines(opened: BinaryIO, field_name: str, over: int) -> Iterator[tuple[int, bytes | str]]:
    """Empty ones are no records."""
    for number, line in enumerate(opened, 1):
        if number > over and line.strip():
            yield number, _text(line, field_name)


def _text(line: bytes, field_name: str) -> bytes | str:
    """Of a record, as bytes; else why it has none."""
    try:
        record = json.loads(line)
    except UnicodeDecodeError:
        return "not UTF-8"
    except ValueError as error:
        return f"not JSON: {error}"
    if not isinstance(record, dict):
        return f"a record is an object, found {json.dumps(record)[:40]}"
    if field_name not in record:
        return f"no field {field_name!r}; there are: {', '.join(record) or 'none'}"
    if not isinstance(record[field_name], str):
        return f"{field_name!r} is no text: {json.dumps(record[field_name])[:40]}"
    try:
        return record[field_name].encode()
    except UnicodeEncodeError:
        return f"{field_name!r} has half of a surrogate pair"


@contextmanager
def _unpacked(file: File, raw: BinaryIO) -> Iterator[BinaryIO]:
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
