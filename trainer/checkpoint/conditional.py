"""Conditional writes to an object store: replace an object only if it is unchanged since a read.

An object store gives every write of an object a new generation. It accepts a conditional write only
if the object still has the generation that the write names. tensorstore implements that part of the
protocol; gcsfs does not.

References:
    Google Cloud Storage: https://docs.cloud.google.com/storage/docs/request-preconditions
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from trainer.contract.storage.paths import AnyPath


class Seen(NamedTuple):
    """An object's content and generation when it was read."""

    text: str | None
    """None when the object does not exist."""
    generation: bytes


def read(path: AnyPath) -> Seen:
    """Reads an object with its generation."""
    with _as_os_errors(path):
        result = _folder_of(path).read(path.name).result()
    text = result.value.decode() if result.state == "value" else None
    return Seen(text, result.stamp.generation)


def write(path: AnyPath, text: str, generation: bytes) -> bool:
    """Writes an object that still has `generation`. Returns False when another writer came first.

    A write whose response was lost is sent again and refused: then the stored content decides.
    """
    with _as_os_errors(path):
        stamp = _folder_of(path).write(path.name, text.encode(), if_equal=generation).result()
    return bool(stamp.generation) or read(path).text == text


def create(path: AnyPath, text: str) -> bool:
    """Writes an object that does not exist yet. Returns False when another writer came first."""
    seen = read(path)
    return seen.text == text if seen.text is not None else write(path, text, seen.generation)


def _folder_of(path: AnyPath) -> Any:
    import tensorstore

    return tensorstore.KvStore.open(f"{path.parent}/").result()


@contextmanager
def _as_os_errors(path: AnyPath) -> Iterator[None]:
    """Converts errors of the store, which tensorstore raises as ValueError, to OS errors."""
    try:
        yield
    except ValueError as error:
        text = str(error)
        if text.startswith("NOT_FOUND"):
            raise FileNotFoundError(f"{path}: {text}") from error
        if text.startswith(("PERMISSION_DENIED", "UNAUTHENTICATED")):
            raise PermissionError(f"{path}: {text}") from error
        raise
