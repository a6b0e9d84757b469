"""Records of JSON Lines, and what is wrong with those that are none."""

import json
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TypeVar

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
