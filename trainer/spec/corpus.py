"""The documents of a corpus, in one order on every host, and their hash. Pure Python and fast."""

import glob
import hashlib
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path

from trainer.spec.job import Data

# Folders of the standard library that hold no library: installed packages, caches, tests.
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


class DataError(ValueError):
    """Data that cannot serve the job, and what to do about it."""


@dataclass(frozen=True)
class Document:
    name: str
    """The same on every host: the path below the corpus's root."""
    path: Path


def documents(data: Data) -> list[Document]:
    """All documents of the job's corpus, sorted by name.

    Raises:
      DataError: where there is none.
    """
    return _stdlib() if data.source == "stdlib" else _text(data.path)


def read(document: Document) -> bytes:
    """Raises DataError where the file cannot be read."""
    try:
        return document.path.read_bytes()
    except OSError as error:
        raise DataError(f"data.path: {document.path} cannot be read: {error.strerror}") from None


def digest(data: Data) -> str:
    """sha256 over name, length and bytes of every document: equal where the corpora are."""
    total = hashlib.sha256()
    for document in documents(data):
        content = read(document)
        total.update(os.fsencode(f"{document.name}\0{len(content)}\0"))
        total.update(content)
    return total.hexdigest()


def _stdlib() -> list[Document]:
    root = sysconfig.get_path("stdlib")
    found = [Document(name, Path(root, name)) for name in sorted(_sources(root, ""))]
    if not found:
        raise DataError(
            f"data.source: this Python has no source text in {root}. "
            "Use another Python, or data.source: text with data.path"
        )
    return found


def _sources(root: str, below: str) -> Iterator[str]:
    """Names of the *.py files under `root`, as paths from it with forward slashes."""
    with os.scandir(f"{root}/{below}") as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _LEFT_OUT:
                    yield from _sources(root, name + "/")
            elif entry.name.endswith(".py"):
                yield name


def _text(pattern: str | None) -> list[Document]:
    if not pattern:
        raise DataError('data.path: missing; source: text needs a glob, such as "corpus/*.txt"')
    expanded = str(Path(pattern).expanduser())
    root = _fixed_part(expanded)
    # Path.glob takes no absolute pattern.
    matched = {Path(p) for p in glob.glob(expanded, recursive=True)}  # noqa: PTH207
    files = [path for path in matched if path.is_file()]
    _check_some(pattern, matched, files)
    found = [Document(path.relative_to(root).as_posix(), path) for path in files]
    return sorted(found, key=lambda document: document.name)


def _fixed_part(pattern: str) -> Path:
    """The folder that every match is in: hosts may keep it in different places."""
    parts = Path(pattern).parts
    fixed = list(takewhile(lambda part: not glob.has_magic(part), parts))
    return Path(*fixed) if len(fixed) < len(parts) else Path(pattern).parent


def _check_some(pattern: str, matched: set[Path], files: list[Path]) -> None:
    if not matched:
        raise DataError(
            f"data.path: nothing matches '{pattern}', seen from {Path.cwd()}. The files must be on "
            "every host; ** stands for folders at any depth"
        )
    if not files:
        raise DataError(f"data.path: '{pattern}' is a folder; its files are '{pattern}/*'")
    if not any(path.stat().st_size for path in files):
        raise DataError(f"data.path: all that matches '{pattern}' is empty ({len(files)} files)")
