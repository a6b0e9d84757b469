"""Objects of a corpus on an object store: listed by a glob, and identified by their content."""

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from trainer.contract.storage.paths import AnyPath, to_path

CONTENT = ("md5Hash", "crc32c", "generation")
"""Metadata keys that identify an object's content, the best first."""


class Object(NamedTuple):
    name: str
    """Path below the fixed part of the glob."""
    path: AnyPath
    size: int
    mark: str
    """Hash or version of the content; it changes with the content."""


class StoreError(OSError):
    """Raised when the store does not return a requested object, with the reason."""


def matching(pattern: str) -> list[Object]:
    """Returns the objects that a glob such as gs://BUCKET/**/*.txt matches, sorted by name.

    Raises ConfigError when this machine cannot reach such a URL, and StoreError for store errors.
    """
    to_path(pattern)
    import fsspec  # imported late: it comes with an extra

    with _as_store_error():
        store, path = fsspec.url_to_fs(pattern)
        found: dict[str, Any] = store.glob(path, detail=True)
    fixed = _fixed_part(PurePosixPath(path))
    return [
        Object(
            PurePosixPath(name).relative_to(fixed).as_posix(),
            to_path(f"gs://{name}"),
            about["size"],
            next(f"{key} {about[key]}" for key in CONTENT if key in about),
        )
        for name, about in sorted(found.items())
        if about["type"] == "file"
    ]


def opened(path: AnyPath) -> BinaryIO:
    """Opens an object for reading. Raises StoreError."""
    with _as_store_error():
        return path.open("rb")


@contextmanager
def _as_store_error() -> Iterator[None]:
    """Converts all exceptions of gcsfs, Google's libraries and the network to StoreError."""
    try:
        yield
    except FileNotFoundError:
        raise StoreError(
            "the object does not exist, or your credentials do not grant access to it"
        ) from None
    except Exception as error:
        raise StoreError(" ".join(str(error).split())) from error


def _fixed_part(pattern: PurePosixPath) -> PurePosixPath:
    """Returns the folder that contains every match."""
    fixed = list(takewhile(lambda part: not glob.has_magic(part), pattern.parts))
    return PurePosixPath(*fixed) if len(fixed) < len(pattern.parts) else pattern.parent
