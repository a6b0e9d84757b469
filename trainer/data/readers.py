"""Reads records from files: JSON Lines, Parquet (by an extra library) and ArrayRecord.

Files that can only be read memory-mapped are copied from an object store to the local disk first.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from trainer.contract.storage.cache_dirs import cache_folder, make_cache_folder
from trainer.contract.storage.corpus import DataError, File, reading

Read = TypeVar("Read")
Record = dict[str, Any]


class BadRecordError(ValueError):
    """Why a record is left out."""


def lines(
    opened: BinaryIO, read: Callable[[Record], Read], over: int = 0
) -> Iterator[tuple[int, Read | BadRecordError]]:
    """Number of each line from 1 that comes after `over` lines, and its record as `read` takes it,
    or what is wrong. Empty lines are no records.
    """
    for number, line in enumerate(opened, 1):
        if number > over and line.strip():
            try:
                yield number, read(_record(line))
            except BadRecordError as error:
                yield number, error


def value(record: Record, field: str) -> Any:
    """Raises BadRecordError where there is no such field."""
    if field not in record:
        raise BadRecordError(f"no field {field!r}; there are: {', '.join(record) or 'none'}")
    return record[field]


def text(record: Record, field: str) -> str:
    """Raises BadRecordError where there is none that UTF-8 can say."""
    found = value(record, field)
    if not isinstance(found, str):
        raise BadRecordError(f"{field!r} is no text: {json.dumps(found)[:40]}")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise BadRecordError(f"{field!r} has half of a surrogate pair") from None
    return found


def _record(line: bytes) -> Record:
    try:
        found = json.loads(line)
    except UnicodeDecodeError:
        raise BadRecordError("not UTF-8") from None
    except ValueError as error:
        raise BadRecordError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRecordError(f"a record is an object, found {json.dumps(found)[:40]}")
    return found


def on_disk(file: File) -> Path:
    """The file on this host, fetched once where it is on an object store. Raises DataError."""
    if file.mark is None:
        return file.path
    key = hashlib.sha256(f"{file.path}\0{file.mark}".encode()).hexdigest()[:32]
    copy = cache_folder() / "objects" / f"{key}{file.path.suffix}"
    if not copy.exists():
        make_cache_folder(copy.parent.name)
        unfinished = copy.with_name(f".{copy.name}.{os.getpid()}")
        with reading(file) as source, unfinished.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 24)
        unfinished.rename(copy)
    return copy


AT_ONCE = 256
"""Records that are read together."""


def parquet_rows(file: File, column: str, over: int) -> Iterator[tuple[int, bytes | str, float]]:
    """Number of each row from 1 that comes after `over` rows, its text or why it has none, and the
    share of the file that is read. Raises DataError.
    """
    library, number = _pyarrow(), 0
    try:
        with reading(file) as opened, library.parquet.ParquetFile(opened) as table:
            rows, columns = table.metadata.num_rows, table.schema_arrow.names
            if column not in columns:
                there = ", ".join(columns)
                raise DataError(
                    f"data.text_field: {file.path} has no column {column!r}, but {there}"
                )
            for batch in table.iter_batches(AT_ONCE, columns=[column]):
                if number + len(batch) > over:
                    for row, value in enumerate(batch.column(0).to_pylist(), number + 1):
                        if row > over:
                            yield row, _text(value, column), row / rows
                number += len(batch)
    except (library.ArrowException, OSError) as error:
        raise DataError(f"data.path: {file.path} cannot be read: {error}") from error


def array_records(file: File, over: int) -> Iterator[tuple[int, bytes, float]]:
    """The same of a file of ArrayRecord, whose records are texts as they are."""
    module = import_module("array_record.python.array_record_module")
    with reading(file):
        pass  # it says better why it cannot
    try:
        reader = module.ArrayRecordReader(str(on_disk(file)))
        with closing(reader):
            if not reader.ok():
                raise ValueError("it is none")
            count = reader.num_records()
            for first in range(over, count, AT_ONCE):
                numbers = list(range(first, min(first + AT_ONCE, count)))
                for number, record in zip(numbers, reader.read(numbers), strict=True):
                    yield number + 1, record, (number + 1) / count
    except (RuntimeError, ValueError) as error:
        raise DataError(f"data.path: {file.path} cannot be read as ArrayRecord: {error}") from error


def _text(value: object, column: str) -> bytes | str:
    """As bytes; else why there is none."""
    if isinstance(value, str):
        return value.encode()
    return f"{column!r} is no text: {str(value)[:40]}"


def _pyarrow() -> Any:
    """Raises DataError where it is not installed."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ModuleNotFoundError:
        raise DataError(
            "data.source: parquet is read by pyarrow, which is not installed here: it is the extra "
            "`parquet` (`uv run --extra parquet launch ...`)"
        ) from None
