"""`launch profile`: traces the next steps of a live run."""

import sys
from base64 import b64decode
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from launcher.commands.live_run import ask_run, require_host
from launcher.core.errors import HostError, InterruptError
from launcher.core.formatting import format_bytes
from launcher.requests.messages import ProfileRequest, TracePart, TraceWritten

PERFETTO = "perfetto_trace.json.gz"
TRACES = "profile"
"""Folder of the traces in the run's folder."""


@dataclass(frozen=True, kw_only=True)
class TraceFile:
    """A file of a trace."""

    path: str
    bytes: int
    """Size of the file."""


@dataclass(frozen=True, kw_only=True)
class ProfileResult:
    """A trace of some steps, in the run's directory."""

    run: str
    """Name of the run."""
    host: int
    """Number of the host that was traced, from 0."""
    folder: str
    """The folder to open with XProf or TensorBoard."""
    files: Sequence[TraceFile]


def trace(folder: Path, host: int, steps: int) -> ProfileResult:
    """Lets a process trace its next steps, and returns the files in the run's folder.

    Raises RunFolderError when no program of the run is running or the host does not exist,
    HostError when the program takes no such request, and InterruptError after Ctrl-C.
    """
    require_host(folder, host)
    print(f"waiting for {steps} steps of host {host}", file=sys.stderr, flush=True)
    files: list[Path] = []
    try:
        for answer in ask_run(folder, ProfileRequest(host, steps)):
            match answer:
                case TraceWritten(path=path, is_apart=is_apart):
                    files.append(_local(folder, path))
                    if is_apart:
                        files[-1].parent.mkdir(parents=True, exist_ok=True)
                        files[-1].write_bytes(b"")
                case TracePart(data=data):
                    with files[-1].open("ab") as file:
                        file.write(b64decode(data))
                case _:
                    pass
    except KeyboardInterrupt:
        raise InterruptError(f"no longer waiting: {folder.name} continues") from None
    found = [TraceFile(path=str(path), bytes=path.stat().st_size) for path in files]
    return ProfileResult(run=folder.name, host=host, folder=str(folder / TRACES), files=found)


def show(found: ProfileResult) -> None:
    """Prints where the trace is, and how to open it."""
    for file in found.files:
        print(f"{file.path}  {format_bytes(file.bytes)}")
    if any(Path(file.path).name == PERFETTO for file in found.files):
        print(f"open {PERFETTO} at https://ui.perfetto.dev, or everything in XProf:")
    print(f"  uvx xprof --logdir {found.folder}")


def _local(folder: Path, path: str) -> Path:
    """Returns the place of a file of a trace; a compromised host must not choose another one."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or pure.parts[:1] != (TRACES,):
        raise HostError(f"{path} is no file of a trace")
    return folder / path
