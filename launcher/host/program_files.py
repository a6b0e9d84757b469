"""Compiled programs on the disk of a host, which the hosts of a run share by content hash.

A file is complete under its name, or not there: what arrives is written once its SHA-256 is right.
A file that exists already stays as it is.
"""

import hashlib
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.protocol.environment import PROGRAMS_BYTES
from trainer.contract.storage import compiled_programs
from trainer.contract.storage.compiled_programs import COMPILED, EXECUTABLES, SHARED

PART_BYTES = 4 << 20
"""Most bytes of a file in one message."""
SETTLED_S = 3.0
"""Age at which a file of JAX's cache is complete: JAX writes it under its final name."""
SHA256 = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class ProgramFile:
    """A file of compiled programs."""

    name: str
    """Its path below the cache folder; see SHARED."""
    size: int
    sha256: str

    @property
    def is_valid(self) -> bool:
        """Whether it names compiled programs, and no other file of the machine that reads it."""
        return bool(SHARED.fullmatch(self.name) and SHA256.fullmatch(self.sha256))

    def problem(self, content: bytes | bytearray) -> str:
        """Returns why `content` is not that of the file, or ""."""
        if not self.is_valid:
            return f"{self.name!r} is no file of compiled programs"
        if hashlib.sha256(content).hexdigest() != self.sha256:
            return f"{self.name} has arrived damaged: its SHA-256 is another one"
        return ""


class ProgramFiles:
    """The compiled programs in the cache folder of a program with these environment variables.

    SLIPWAY_PROGRAMS_BYTES=0 keeps no programs: the host then has none and lacks none.
    """

    def __init__(self, variables: Mapping[str, str]) -> None:
        try:
            self._folder = compiled_programs.user_cache_folder(variables)
            self._limit = compiled_programs.limit_of(variables.get(PROGRAMS_BYTES)) or 0
        except RuntimeError:  # a user without a home
            self._folder, self._limit = Path(), 0
        self._hashes: dict[tuple[str, int, int], str] = {}
        """SHA-256 by name, inode and time of the last use."""
        self._arriving: tuple[ProgramFile, bytearray] | None = None
        """A file of which a part has arrived, and its content so far."""

    @property
    def folder_id(self) -> str:
        """The id of the cache folder; "" without one that can be written."""
        return compiled_programs.folder_id(self._folder) if self._limit else ""

    def used_since(self, time_s: float) -> list[ProgramFile]:
        """Returns the files that were written or loaded since then, in seconds since the epoch.

        A file of JAX's cache that was only read counts as unused.
        """
        return list(self._used_since(time_s)) if self._limit else []

    def part(self, name: str, begin: int) -> bytes:
        """Returns the next bytes of a file; b"" at its end, and when it is gone."""
        with suppress(OSError), (self._folder / name).open("rb") as file:
            file.seek(begin)
            return file.read(PART_BYTES)
        return b""

    def missing(self, names: Iterable[str]) -> list[str]:
        """Returns those of the names that no file has."""
        return [name for name in names if self._limit and not (self._folder / name).exists()]

    def take(self, file: ProgramFile, begin: int, part: bytes) -> str:
        """Takes the part of a file that begins there, and writes the file after its last part.

        Returns why the file is not written, or "".
        """
        if not begin:
            self._arriving = file, bytearray()
        if self._arriving is None or self._arriving[0] != file:
            return f"a part of {file.name} has arrived without the one before"
        content = self._arriving[1]
        content += part
        if begin + len(part) < file.size:
            return ""
        self._arriving = None
        return file.problem(content) or self._write(file.name, content)

    def _used_since(self, time_s: float) -> Iterator[ProgramFile]:
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
        key = name, status.st_ino, status.st_mtime_ns
        if key not in self._hashes:
            with path.open("rb") as file:
                self._hashes[key] = hashlib.file_digest(file, "sha256").hexdigest()
        return self._hashes[key]

    def _write(self, name: str, content: bytearray) -> str:
        path = self._folder / name
        try:
            if not path.exists():
                compiled_programs.write(path, content)
        except OSError as error:
            return f"{path.parent} cannot be written: {error.strerror}"
        return ""


def _age_s(status: os.stat_result) -> float:
    return time.time() - status.st_mtime
