"""Records of files that are no lines of text: Parquet, by an extra library, and ArrayRecord."""

from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from typing import Any

from trainer.data.on_disk import on_disk
from trainer.spec.corpus import DataError, File, reading

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
