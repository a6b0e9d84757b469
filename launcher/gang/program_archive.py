"""Compiled programs of a run's hosts, in the run's folder: by their SHA-256, and by process.

They outlive the hosts that have made them, and the command: `launch resume` finds them.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import astuple
from pathlib import Path
from typing import Any

from launcher.core.files import read_object, replace_file
from launcher.host.program_files import PART_BYTES, ProgramFile
from trainer.contract.storage import durable_files
from trainer.contract.storage.compiled_programs import COMPILED, IN_RUN, SHARED

INDEX = "index.json"


class RejectedError(Exception):
    """A file cannot be kept; the message gives the reason."""


class ProgramArchive:
    """The programs that the processes of a run have used, for hosts that lack them."""

    def __init__(self, run_dir: Path, limit_bytes: int) -> None:
        """Reads what an earlier command has kept. All files together have `limit_bytes` at most."""
        self._folder, self._limit = run_dir / IN_RUN, limit_bytes
        self._used = _read(self._folder / INDEX)
        kept = {file.sha256: file.size for files in self._used.values() for file in files.values()}
        self._size = sum(kept.values())

    def lacks(self, process: int, files: Iterable[ProgramFile]) -> list[ProgramFile]:
        """Returns those of a process's files that are not here, and records the others as used."""
        lacking = [file for file in files if not self._path(file).exists()]
        self._record(process, {file.name: file for file in files if file not in lacking})
        return lacking

    def add(self, process: int, file: ProgramFile, content: bytes | bytearray) -> None:
        """Keeps a file that a process uses. Raises RejectedError when that is not possible."""
        if not SHARED.fullmatch(file.name):
            raise RejectedError(f"{file.name!r} is no file of compiled programs")
        if hashlib.sha256(content).hexdigest() != file.sha256:
            raise RejectedError(f"{file.name} has arrived damaged: its SHA-256 is another one")
        if self._size + file.size > self._limit:
            raise RejectedError(f"all together would have more than {self._limit:,} bytes")
        try:
            self._folder.mkdir(exist_ok=True)
            durable_files.add(self._path(file), content, str(os.getpid()))
            self._record(process, {file.name: file})
        except OSError as error:
            raise RejectedError(f"{self._folder} cannot be written: {error.strerror}") from None
        self._size += file.size

    def needed(self, process: int, *, on_cpu: bool) -> list[ProgramFile]:
        """Returns the files that a process may need.

        They are those that the hosts of this number have used, whatever the number of hosts. Except
        on CPU, JAX's compile cache is written by process 0 alone, under keys that all share.
        """
        first = {} if on_cpu else self._used.get(0, {})
        common = {name: file for name, file in first.items() if name.startswith(f"{COMPILED}/")}
        return list({**common, **self._used.get(process, {})}.values())

    def part(self, file: ProgramFile, begin: int) -> bytes:
        """Returns the next bytes of a file. Raises OSError when it is gone."""
        with self._path(file).open("rb") as opened:
            opened.seek(begin)
            return opened.read(PART_BYTES)

    def _record(self, process: int, files: Mapping[str, ProgramFile]) -> None:
        """Raises OSError when the index cannot be written."""
        known = self._used.setdefault(process, {})
        if all(known.get(name) == file for name, file in files.items()):
            return
        known |= files
        index = {one: _fields(used) for one, used in self._used.items()}
        replace_file(self._folder / INDEX, json.dumps(index))

    def _path(self, file: ProgramFile) -> Path:
        return self._folder / file.sha256


def remove(run_dir: Path) -> None:
    """Removes the programs of a run that needs them no more."""
    shutil.rmtree(run_dir / IN_RUN, ignore_errors=True)


def _read(index: Path) -> dict[int, dict[str, ProgramFile]]:
    """Returns the files of each process; none without an index that this version has written."""
    try:
        return {
            int(process): {name: ProgramFile(name, *about) for name, about in files.items()}
            for process, files in read_object(index).items()
        }
    except (ValueError, TypeError, AttributeError):
        return {}


def _fields(files: Mapping[str, ProgramFile]) -> dict[str, tuple[Any, ...]]:
    return {name: astuple(file)[1:] for name, file in files.items()}
