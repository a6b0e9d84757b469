"""Compiled programs on the disk of a host, which the hosts of a run share by content hash.

A file is complete under its name, or not there: what arrives is written beside it, and gets the
name once its SHA-256 is right. A file that exists already stays as it is.
"""

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from trainer.contract.protocol.environment import PROGRAMS_BYTES
from trainer.contract.storage import durable_files
from trainer.contract.storage.compiled_programs import (
    COMPILED,
    EXECUTABLES,
    SHARED,
    folder_id,
    limit_of,
    user_cache_folder,
)

PART_BYTES = 4 << 20
"""Most bytes of a file in one message."""
SETTLED_S = 3.0
"""Age at which a file of JAX's cache is complete: JAX writes it under its final name."""


@dataclass(frozen=True)
class ProgramFile:
    """A file of compiled programs."""

    name: str
    """Its path below the cache folder; see SHARED."""
    size: int
    sha256: str


@dataclass
class _Arriving:
    """A file of which a part has arrived."""

    file: ProgramFile
    content: bytearray = field(default_factory=bytearray)


class ProgramFiles:
    """The compiled programs in the cache folder of a program with these environment variables.

    SLIPWAY_PROGRAMS_BYTES=0 keeps no programs: the host then has none and lacks none.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        try:
            self._folder = user_cache_folder(variables)
        except RuntimeError:  # a user without a home
            self._folder = None
        self._limit = limit_of(variables.get(PROGRAMS_BYTES)) if self._folder else 0
        self._hashes: dict[tuple[str, int, int], str] = {}
        """SHA-256 by name, inode and size."""
        self._arriving: _Arriving | None = None

    @property
    def folder_id(self) -> str:
        """The id of the cache folder; "" without one that can be written."""
        return folder_id(self._folder) if self._limit and self._folder else ""

    def used_since(self, time_s: float) -> list[ProgramFile]:
        """Returns the files that were written or loaded since then, in seconds since the epoch.

        A file of JAX's cache that was only read counts as unused.
        """
        return list(self._used_since(time_s)) if self._limit else []

    def part(self, name: str, begin: int) -> bytes:
        """Returns the next bytes of a file; b"" at its end, and when it is gone."""
        assert self._folder
        with suppress(OSError), (self._folder / name).open("rb") as file:
            file.seek(begin)
            return file.read(PART_BYTES)
        return b""

    def missing(self, names: Iterable[str]) -> list[str]:
        """Returns those of the names that no file has."""
        if not (self._limit and self._folder):
            return []
        return [name for name in names if not (self._folder / name).exists()]

    def take(self, file: ProgramFile, begin: int, part: bytes) -> str:
        """Takes the part of a file that begins there, and writes the file after its last part.

        Returns why the file is not written, or "".
        """
        if not begin:
            self._arriving = _Arriving(file)
        if self._arriving is None or self._arriving.file != file:
            return f"a part of {file.name} has arrived without the one before"
        content = self._arriving.content
        content += part
        if begin + len(part) < file.size:
            return ""
        self._arriving = None
        if hashlib.sha256(content).hexdigest() != file.sha256:
            return f"{file.name} has arrived damaged: its SHA-256 is another one"
        return self._add(file.name, content)

    def _used_since(self, time_s: float) -> Iterator[ProgramFile]:
        assert self._folder and self._limit
        paths = [*self._folder.glob(f"{EXECUTABLES}/*/*"), *self._folder.glob(f"{COMPILED}/*")]
        for path in paths:
            name = str(path.relative_to(self._folder))
            if not SHARED.fullmatch(name):
                continue
            with suppress(OSError):  # it has been removed
                status = path.stat()
                is_settled = path.parent.name != COMPILED or _age_s(status) >= SETTLED_S
                if status.st_mtime >= time_s and is_settled and status.st_size <= self._limit:
                    yield ProgramFile(name, status.st_size, self._hash(name, path, status))

    def _hash(self, name: str, path: Path, status: os.stat_result) -> str:
        key = name, status.st_ino, status.st_size
        if key not in self._hashes:
            with path.open("rb") as file:
                self._hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._hashes[key]

    def _add(self, name: str, content: bytearray) -> str:
        assert self._folder
        if not SHARED.fullmatch(name):
            return f"{name} is no file of compiled programs"
        path = self._folder / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            durable_files.add(path, content, str(os.getpid()))
        except OSError as error:
            return f"{path.parent} cannot be written: {error.strerror}"
        return ""


def _age_s(status: os.stat_result) -> float:
    return time.time() - status.st_mtime
