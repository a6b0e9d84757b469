"""`launch exec`: runs a command on a host of a live run."""

import sys
from base64 import b64decode
from codecs import getincrementaldecoder
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.commands.live_run import ask_run, require_host
from launcher.core.errors import InterruptError
from launcher.core.exit_codes import NO_CLUSTER
from launcher.core.json_output import print_json_line
from launcher.requests.messages import CommandEnded, CommandOutput, ExecRequest


@dataclass(frozen=True, kw_only=True)
class ExecOutput:
    """What a command has printed since the last such line."""

    stdout: str
    """Text of its standard output."""
    stderr: str
    """Text of its standard error."""


@dataclass(frozen=True, kw_only=True)
class ExecEnded:
    """The end of a command: the last line."""

    host: int
    """Number of the host, from 0."""
    exit_code: int
    """Exit code of the command, and of `launch exec`; 128 + N after signal N."""


def execute(folder: Path, host: int, command: Sequence[str], *, as_json: bool) -> int:
    """Runs a command on a host, prints its output, and returns its exit code.

    Raises RunFolderError when no program of the run is running or the host does not exist,
    HostError when the host does not answer, and InterruptError after Ctrl-C: the command is ended.
    """
    name = require_host(folder, host)
    output = _JsonOutput() if as_json else _Output()
    exit_code = NO_CLUSTER
    try:
        for answer in ask_run(folder, ExecRequest(host, tuple(command))):
            match answer:
                case CommandOutput(stdout=stdout, stderr=stderr):
                    output.add(b64decode(stdout), b64decode(stderr))
                case CommandEnded(exit_code=code):
                    exit_code = code
                case _:
                    pass
    except KeyboardInterrupt:
        raise InterruptError(
            f"interrupted: the command on {name} is ended; {folder.name} continues"
        ) from None
    output.end(ExecEnded(host=host, exit_code=exit_code))
    return exit_code


class _Output:
    """Copies the output of a command to the same streams."""

    def add(self, stdout: bytes, stderr: bytes) -> None:
        for target, data in ((sys.stdout, stdout), (sys.stderr, stderr)):
            target.buffer.write(data)
            target.buffer.flush()

    def end(self, ended: ExecEnded) -> None:
        pass


class _JsonOutput:
    """Prints the output of a command as JSON lines. A character may be in two messages."""

    def __init__(self) -> None:
        self._stdout, self._stderr = (getincrementaldecoder("utf-8")("replace") for _ in range(2))

    def add(self, stdout: bytes, stderr: bytes, *, final: bool = False) -> None:
        texts = self._stdout.decode(stdout, final), self._stderr.decode(stderr, final)
        if any(texts):
            print_json_line(ExecOutput(stdout=texts[0], stderr=texts[1]))
            sys.stdout.flush()

    def end(self, ended: ExecEnded) -> None:
        self.add(b"", b"", final=True)
        print_json_line(ended)
