"""Reads records from files: JSON Lines, Parquet (with an extra library) and ArrayRecord.

Files that need memory mapping are first copied from an object store to the local disk.
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
    """The reason that a record is left out."""


def lines(
    opened: BinaryIO, read: Callable[[Record], Read], over: int = 0
) -> Iterator[tuple[int, Read | BadRecordError]]:
    """Yields (line number from 1, result of `read` or its error) for records after `over` lines.

    Empty lines are skipped.
    """
    for number, line in enumerate(opened, 1):
        if number > over and line.strip():
            try:
                yield number, read(_record(line))
            except BadRecordError as error:
                yield number, error


def value(record: Record, field: str) -> Any:
    """Returns a field of a record. Raises BadRecordError when the field is missing."""
    if field not in record:
        raise BadRecordError(f"no field {field!r}; found the fields: {', '.join(record) or 'none'}")
    return record[field]


def text(record: Record, field: str) -> str:
    """Returns a text field. Raises BadRecordError when it is not a string that UTF-8 can encode."""
    found = value(record, field)
    if not isinstance(found, str):
        raise BadRecordError(f"{field!r} must be text, found {json.dumps(found)[:40]}")
    try:
        found.encode()
    except UnicodeEncodeError:
        raise BadRecordError(f"{field!r} contains an unpaired surrogate") from None
    return found


def _record(line: bytes) -> Record:
    try:
        found = json.loads(line)
    except UnicodeDecodeError:
        raise BadRecordError("the line is not UTF-8") from None
    except ValueError as error:
        raise BadRecordError(f"the line is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadRecordError(f"expected a JSON object, found {json.dumps(found)[:40]}")
    return found


def on_disk(file: File) -> Path:
    """Returns a local path; a file on an object store is copied once. Raises DataError."""
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


RECORDS_PER_READ = 256


def parquet_rows(file: File, column: str, over: int) -> Iterator[tuple[int, bytes | str, float]]:
    """Yields (row number from 1, text, share of the file read so far) for rows after `over` rows.

    A str instead of the text is the reason that it is missing. Raises DataError.
    """
    library, number = _pyarrow(), 0
    try:
        with reading(file) as opened, library.parquet.ParquetFile(opened) as table:
            rows, columns = table.metadata.num_rows, table.schema_arrow.names
            if column not in columns:
                raise DataError(
                    f"data.text_field: {file.path} has no column {column!r}; "
                    f"found the columns: {', '.join(columns)}"
                )
            for batch in table.iter_batches(RECORDS_PER_READ, columns=[column]):
                if number + len(batch) > over:
                    for row, value in enumerate(batch.column(0).to_pylist(), number + 1):
                        if row > over:
                            yield row, _text(value, column), row / rows
                number += len(batch)
    except (library.ArrowException, OSError) as error:
        raise DataError(f"data.path: {file.path} cannot be read: {error}") from error


def array_records(file: File, over: int) -> Iterator[tuple[int, bytes, float]]:
    """Yields (record number from 1, text, share of the file read so far), as `parquet_rows` does.

    The records are plain texts. Raises DataError.
    """
    module = import_module("array_record.python.array_record_module")
    with reading(file):
        pass  # raises a clearer error when the file cannot be read
    try:
        reader = module.ArrayRecordReader(str(on_disk(file)))
        with closing(reader):
            if not reader.ok():
                raise ValueError("invalid header")
            count = reader.num_records()
            for first in range(over, count, RECORDS_PER_READ):
                numbers = list(range(first, min(first + RECORDS_PER_READ, count)))
                for number, record in zip(numbers, reader.read(numbers), strict=True):
                    yield number + 1, record, (number + 1) / count
    except (RuntimeError, ValueError) as error:
        raise DataError(f"data.path: {file.path} cannot be read as ArrayRecord: {error}") from error


def _text(value: object, column: str) -> bytes | str:
    """Returns the text as bytes, or a str with the reason that it is not text."""
    if isinstance(value, str):
        return value.encode()
    return f"{column!r} must be text, found {str(value)[:40]}"


def _pyarrow() -> Any:
    """Imports pyarrow. Raises DataError when it is not installed."""
    try:
        import_module("pyarrow.parquet")
        return import_module("pyarrow")
    except ModuleNotFoundError:
        raise DataError(
            "data.source: parquet needs pyarrow, which is not installed on this host. Install the "
            "extra `parquet`: `uv run --extra parquet launch ...`"
        ) from None
