"""Files on an object store, as corpora need them: listed by a glob, and told apart."""

import glob
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from trainer.contract.storage.paths import AnyPath, place

CONTENT = ("md5Hash", "crc32c", "generation")
"""What the store says of an object's content, the best first."""


class Object(NamedTuple):
    name: str
    """Below the part of the glob that is fixed."""
    path: AnyPath
    size: int
    mark: str
    """Another one where the content is another."""


class StoreError(OSError):
    """The store does not give what is asked for; says why."""


def matching(pattern: str) -> list[Object]:
    """The objects that a glob such as gs://BUCKET/**/*.txt matches, by name; none where none does.

    Raises ConfigError where such a URL cannot be reached from here, StoreError.
    """
    place(pattern)
    import fsspec  # late: comes with the extra

    with _told():
        store, path = fsspec.url_to_fs(pattern)
        found: dict[str, Any] = store.glob(path, detail=True)
    fixed = _fixed_part(PurePosixPath(path))
    return [
        Object(
            PurePosixPath(name).relative_to(fixed).as_posix(),
            place(f"gs://{name}"),
            about["size"],
            next(f"{key} {about[key]}" for key in CONTENT if key in about),
        )
        for name, about in sorted(found.items())
        if about["type"] == "file"
    ]


def opened(path: AnyPath) -> BinaryIO:
    """A stream of the object. Raises StoreError."""
    with _told():
        return path.open("rb")


@contextmanager
def _told() -> Iterator[None]:
    """Whatever gcsfs, Google's libraries and the network raise, in one way."""
    try:
        yield
    except FileNotFoundError:
        raise StoreError("there is no such object, or it is not shown to you") from None
    except Exception as error:
        raise StoreError(" ".join(str(error).split())) from error


def _fixed_part(pattern: PurePosixPath) -> PurePosixPath:
    """The folder that every match is in."""
    fixed = list(takewhile(lambda part: not glob.has_magic(part), pattern.parts))
    return PurePosixPath(*fixed) if len(fixed) < len(pattern.parts) else pattern.parent
