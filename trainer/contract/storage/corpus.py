"""The files of a corpus, in the same order on every host, and their hash. Pure Python and fast."""

import glob
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO

from trainer.contract.config.data import BYTES, Data, TrainTokenizer
from trainer.contract.storage import listing, object_store
from trainer.contract.storage.chat_template import chat_template
from trainer.contract.storage.paths import AnyPath, is_url
from trainer.contract.storage.retries import retried
from trainer.contract.storage.tokenizer_info import Vocabulary, VocabularyError, vocabulary

EXAMPLE = '"corpus/**/*.txt"'
CHUNK_BYTES = 1 << 20
# Folders below the standard library that are not part of it: installed packages, caches, tests.
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}


class DataError(ValueError):
    """Raised for data that the job cannot use, with the remedy."""


@dataclass(frozen=True)
class File:
    name: str
    """Path below the corpus's root, the same on every host."""
    path: AnyPath
    mark: str | None = None
    """The object store's hash or version of the content; None for a file on this host."""
    object_bytes: int = 0

    @property
    def size(self) -> int:
        """Size in bytes."""
        return self.path.stat().st_size if self.mark is None else self.object_bytes


def files(data: Data) -> list[File]:
    """Returns all files of the job's corpus, sorted by name.

    Raises:
      DataError: when no file matches.
      StorageError: when the storage does not recover.
    """
    find = _stdlib if data.source == "stdlib" else partial(_matching, data)
    return retried("listing the files of the corpus", find)


@contextmanager
def reading(file: File) -> Iterator[BinaryIO]:
    """Opens a file for reading. Raises DataError when it cannot be read."""
    try:
        with (
            file.path.open("rb") if file.mark is None else object_store.opened(file.path) as opened
        ):
            yield opened
    except OSError as error:
        why = error.strerror or error
        raise DataError(f"data.path: {file.path} cannot be read: {why}") from error


def digest(data: Data) -> str:
    """Returns the sha256 over name, length and bytes of every file, which equal corpora share.

    For objects, the store's hash or version replaces the bytes. The sha256 also covers all other
    settings that the tokens depend on. Raises DataError, StorageError.
    """
    total = hashlib.sha256()
    if data.source in ("jsonl", "parquet"):
        total.update(f"{data.source}\0{data.text_field}\0".encode())
    elif data.source == "chat":
        total.update(f"chat\0{data.fields.model_dump_json()}\0{_template(data)}\0".encode())
    elif data.source == "preference":
        total.update(f"preference\0{_template(data)}\0".encode())
    elif data.source == "array_record":
        total.update(b"array_record\0")
    elif data.source == "tokens":
        total.update(f"tokens\0{data.dtype}\0".encode())
    if data.tokenizer != BYTES:
        found = _vocabulary(data)
        total.update(f"tokenizer\0{found.sha256}\0{found.eos_id}\0".encode())
    for file in files(data):
        if file.mark is not None:
            total.update(os.fsencode(f"{file.name}\0{file.size}\0{file.mark}\0"))
            continue
        total = retried(str(file.path), partial(_with_file, total, file))
    return total.hexdigest()


def _with_file(before: Any, file: File) -> Any:
    """Returns the hash extended by a file. `before` is not changed, so a retry can reuse it."""
    total = before.copy()
    with reading(file) as opened:
        size = os.fstat(opened.fileno()).st_size
        total.update(os.fsencode(f"{file.name}\0{size}\0"))
        while chunk := opened.read(CHUNK_BYTES):
            total.update(chunk)
    return total


def is_of_hosts(data: Data) -> bool:
    """Returns whether only the hosts can determine the tokens."""
    return data.source != "stdlib" or isinstance(data.tokenizer, TrainTokenizer)


def _vocabulary(data: Data) -> Vocabulary:
    with as_data_error():
        return vocabulary(data)


def _template(data: Data) -> str:
    """Returns the chat template and its tokens as one text."""
    with as_data_error():
        found = chat_template(data)
    return json.dumps(found and [found.text, dict(found.tokens)])


@contextmanager
def as_data_error() -> Iterator[None]:
    """Converts VocabularyError to DataError: on a host, a file has changed since the plan."""
    try:
        yield
    except VocabularyError as error:
        raise DataError(f"data.{error.key}: {error}") from None


def _stdlib() -> list[File]:
    root = sysconfig.get_path("stdlib")
    found = [File(name, Path(root, name)) for name in sorted(_sources(root, ""))]
    if not found:
        raise DataError(
            f"data.source: this Python has no source files in {root}. "
            "Use another Python, or data.source: text with data.path"
        )
    return found


def _sources(root: str, below: str) -> Iterator[str]:
    """Yields the *.py files under `root`, as paths relative to it with forward slashes."""
    with os.scandir(f"{root}/{below}") as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_dir(follow_symlinks=False):
                if entry.name not in _LEFT_OUT:
                    yield from _sources(root, name + "/")
            elif entry.name.endswith(".py"):
                yield name


def _matching(data: Data) -> list[File]:
    pattern = data.path
    if not pattern:
        raise DataError(
            f"data.path: missing; source '{data.source}' needs a glob, such as {EXAMPLE}"
        )
    if is_url(pattern):
        return _on_store(pattern)
    expanded = str(Path(pattern).expanduser())
    root = _fixed_part(expanded)
    try:
        matched = set(listing.matching(Path(expanded)))
    except OSError as error:
        raise DataError(f"data.path: '{pattern}' cannot be listed: {error}") from error
    paths = [path for path in matched if path.is_file()]
    _check_some(pattern, matched, paths)
    found = [File(path.relative_to(root).as_posix(), path) for path in paths]
    return sorted(found, key=lambda file: file.name)


def _on_store(pattern: str) -> list[File]:
    try:
        found = object_store.matching(pattern)
    except OSError as error:
        raise DataError(f"data.path: '{pattern}' cannot be listed: {error}") from error
    if not found:
        raise DataError(
            f"data.path: no object that your credentials can list matches '{pattern}'. "
            "** matches folders at any depth"
        )
    if not any(one.size for one in found):
        raise DataError(f"data.path: all {len(found)} objects that match '{pattern}' are empty")
    return [File(one.name, one.path, one.mark, one.size) for one in found]


def _fixed_part(pattern: str) -> Path:
    """Returns the folder that contains every match. Its location may differ between hosts."""
    parts = Path(pattern).parts
    fixed = list(takewhile(lambda part: not glob.has_magic(part), parts))
    return Path(*fixed) if len(fixed) < len(parts) else Path(pattern).parent


def _check_some(pattern: str, matched: set[Path], files: list[Path]) -> None:
    if not matched:
        raise DataError(
            f"data.path: no file matches '{pattern}' in {Path.cwd()}. The files must exist on "
            "every host; ** matches folders at any depth"
        )
    if not files:
        raise DataError(f"data.path: '{pattern}' is a folder. Use '{pattern}/*' for its files")
    if not any(path.stat().st_size for path in files):
        raise DataError(f"data.path: all {len(files)} files that match '{pattern}' are empty")
