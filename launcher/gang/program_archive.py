"""Compiled programs of a run's hosts, in the run's folder: by their SHA-256, and by process.

They outlive the hosts that have made them, and the command: `launch resume` finds them.
"""

import json
import os
import shutil
from collections.abc import Iterable
from dataclasses import astuple
from pathlib import Path

from launcher.core.files import read_object
from launcher.host.program_files import PART_BYTES, ProgramFile
from trainer.contract.protocol.environment import PROGRAMS_BYTES
from trainer.contract.storage import compiled_programs
from trainer.contract.storage.compiled_programs import COMPILED, IN_RUN

INDEX = "index.json"


class ProgramArchive:
    """The programs that the processes of a run have used, for hosts that lack them."""

    def __init__(self, run_dir: Path, limit_bytes: int) -> None:
        """Reads what an earlier command has kept. All files together have `limit_bytes` at most."""
        self._folder, self._limit = run_dir / IN_RUN, limit_bytes
        self._used = _read(self._folder / INDEX)
        kept = {file.sha256: file.size for files in self._used.values() for file in files.values()}
        self._size = sum(kept.values())

    def has(self, file: ProgramFile) -> bool:
        """Returns whether the content of a file is here, maybe under another name."""
        return file.is_valid and self._path(file).exists()

    def refusal(self, file: ProgramFile) -> str:
        """Returns why the limit allows no such file, or ""."""
        is_allowed = self._size + file.size <= self._limit
        return "" if is_allowed else f"all together would have more than {self._limit:,} bytes"

    def add(self, file: ProgramFile, content: bytes | bytearray) -> str:
        """Keeps the content of a file; returns why it does not, or "". Raises OSError."""
        if problem := self.refusal(file) or file.problem(content):
            return problem
        compiled_programs.write(self._path(file), content)
        self._size += file.size
        return ""

    def record(self, process: int, files: Iterable[ProgramFile]) -> None:
        """Records which files a process uses, as far as their content is here. Raises OSError."""
        known = self._used.get(process, {})
        used = known | {file.name: file for file in files if self.has(file)}
        if used != known:
            self._used[process] = used
            index = {
                number: [astuple(file) for file in by_name.values()]
                for number, by_name in self._used.items()
            }
            compiled_programs.write(self._folder / INDEX, json.dumps(index).encode())

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

    def _path(self, file: ProgramFile) -> Path:
        return self._folder / file.sha256


def archive_of(run_dir: Path) -> ProgramArchive | None:
    """Returns the archive of a run; None where SLIPWAY_PROGRAMS_BYTES keeps no programs."""
    limit = compiled_programs.limit_of(os.environ.get(PROGRAMS_BYTES))
    return ProgramArchive(run_dir, limit) if limit else None


def remove(run_dir: Path) -> None:
    """Removes the programs of a run that needs them no more."""
    shutil.rmtree(run_dir / IN_RUN, ignore_errors=True)


def _read(index: Path) -> dict[int, dict[str, ProgramFile]]:
    """Returns the files of each process; none without an index that this version has written."""
    try:
        return {
            int(process): {
                file.name: file for about in files if (file := ProgramFile(*about)).is_valid
            }
            for process, files in read_object(index).items()
        }
    except (ValueError, TypeError):
        return {}
