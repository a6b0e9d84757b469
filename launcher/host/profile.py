"""A trace that a live program is asked for, on its host; see profile_request.py of the contract.

No Ray: the agent actor wraps it, and tests run it directly.
"""

import signal
import time
from dataclasses import dataclass
from pathlib import Path

from launcher.host.process import HostProcess
from trainer.contract.protocol import profile_request

POLL_INTERVAL_S = 0.05
PART_BYTES = 4 << 20


@dataclass(frozen=True)
class TraceFile:
    """A file of a trace."""

    path: str
    """Path below the run's folder."""
    size: int


@dataclass(frozen=True)
class TracedFiles:
    """The files of a trace."""

    files: list[TraceFile] | None
    """None while the trace is not complete."""
    is_apart: bool
    """Whether they are on this host only: it does not share the run's folder."""


class Trace:
    """A request to one program, and the files that it has written."""

    def __init__(self, run_dir: Path, process: int, processes_per_host: int = 1) -> None:
        self._run_dir = run_dir
        self._folder = profile_request.folder_of(run_dir, process, processes_per_host)
        self._request = profile_request.path_of(run_dir, process, processes_per_host)
        self._before = set(self._folder.rglob("*"))

    def begin(self, program: HostProcess, steps: int) -> str:
        """Asks the program to trace its next steps. Returns the error, or ""."""
        try:
            profile_request.write(self._request, steps)
        except OSError as error:
            return f"{self._request} cannot be written: {error.strerror}"
        if program.send(signal.SIGUSR2):
            return ""
        self._request.unlink(missing_ok=True)
        return "its program takes no request for a trace now: it makes no steps, or is no trainer"

    def files(self, wait_s: float) -> list[TraceFile] | None:
        """Returns the files of the trace; None when it is not complete after `wait_s`."""
        deadline = time.monotonic() + wait_s
        while self._request.exists():
            if time.monotonic() >= deadline:
                return None
            time.sleep(POLL_INTERVAL_S)
        new = sorted(path for path in self._folder.rglob("*") if path not in self._before)
        return [
            TraceFile(str(path.relative_to(self._run_dir)), path.stat().st_size)
            for path in new
            if path.is_file()
        ]

    def part(self, path: str, begin: int) -> bytes:
        """Returns the next bytes of a file of the trace; b"" at its end."""
        with (self._run_dir / path).open("rb") as file:
            file.seek(begin)
            return file.read(PART_BYTES)

    def cancel(self) -> None:
        """Withdraws the request, unless the program has begun to trace."""
        self._request.unlink(missing_ok=True)
