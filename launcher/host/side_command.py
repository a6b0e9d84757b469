"""A command beside a host's program, with its two outputs apart. It ends with this process.

No Ray: the agent actor wraps it, and tests run it directly.
"""

import os
import select
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.host.oom_score import OF_PROGRAMS
from launcher.host.process_tree import ProcessTree, ReaperError
from launcher.host.reaper_messages import Exited, Failed

GRACE_S = 3.0
"""Seconds between SIGTERM and SIGKILL for a command that is ended, and for what it leaves."""
ENDING_TIMEOUT_S, POLL_INTERVAL_S = 30.0, 0.5
READ_BYTES = 1 << 20
SIGNAL_BASE = 128
"""Exit code of a command that a signal ended, less the signal's number: as in a shell."""
EXEC = """\
import os, signal, sys
out, err, *command = sys.argv[1:]
os.dup2(int(out), 1), os.dup2(int(err), 2), os.closerange(3, 1 << 10)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
try:
    os.execvp(command[0], command)
except OSError as error:
    print(f"{command[0]}: {error.strerror}", file=sys.stderr)
    sys.exit(127 if isinstance(error, FileNotFoundError) else 126)
"""
"""Connects the outputs and becomes the command; 126 and 127 are a shell's exit codes."""


@dataclass(frozen=True)
class CommandUpdate:
    """What a command has printed since the last update, and how it ended."""

    stdout: bytes = b""
    stderr: bytes = b""
    exit_code: int | None = None
    """Its exit code, 128 + N after signal N, once it and all that it started are gone."""


class SideCommand:
    """A command that the constructor starts. `poll` returns its output."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], cwd: Path) -> None:
        """Raises ReaperError when nothing can be started."""
        self._outputs: list[int] = []
        fds: list[int] = []
        try:
            for _ in range(2):
                reading, writing = os.pipe()
                os.set_blocking(reading, False)
                self._outputs.append(reading)
                fds.append(writing)
            self._tree = ProcessTree(grace_s=GRACE_S, pass_fds=fds)
            argv = [sys.executable, "-I", "-S", "-c", EXEC, *map(str, fds), *command]
            null = Path(os.devnull)
            self._tree.start("command", argv, environment, null, cwd, fds, oom_score=OF_PROGRAMS)
        except BaseException:
            self._close()
            raise
        finally:
            for fd in fds:
                os.close(fd)
        self._exit_code = SIGNAL_BASE  # ended with its reaper
        self._reason = b""

    def poll(self, wait_s: float) -> CommandUpdate:
        """Returns the next output, or the end; waits up to `wait_s` for it."""
        deadline = time.monotonic() + wait_s
        while True:
            is_gone = self._read_answers(max(0.0, deadline - time.monotonic()))
            if not self._outputs:
                return CommandUpdate(exit_code=self._exit_code)
            stdout, stderr = map(_read, self._outputs)
            if is_gone and not stdout and not stderr:
                self._close()
                return CommandUpdate(stderr=self._reason, exit_code=self._exit_code)
            if stdout or stderr or time.monotonic() >= deadline:
                return CommandUpdate(stdout, stderr)

    def end(self) -> None:
        """Ends the command and all that it has started, and waits for it; drops its output."""
        self._tree.let_go()
        deadline = time.monotonic() + ENDING_TIMEOUT_S
        while self.poll(POLL_INTERVAL_S).exit_code is None and time.monotonic() < deadline:
            pass

    def _read_answers(self, wait_s: float) -> bool:
        """Waits for output or a change. Returns whether the command and its tree are gone."""
        sources: list[int] = [*self._outputs]
        try:
            sources.append(self._tree.fileno())
        except ValueError:
            return True  # closed: all is gone
        select.select(sources, [], [], wait_s)
        try:
            answers = self._tree.answers(0.0)
        except ReaperError:
            answers = None
        for answer in answers or []:
            if isinstance(answer, Exited):
                code = os.waitstatus_to_exitcode(answer.status)
                self._exit_code = code if code >= 0 else SIGNAL_BASE - code
                self._tree.let_go()
            elif isinstance(answer, Failed):
                self._exit_code, self._reason = 126, f"{answer.reason}\n".encode()
        return answers is None

    def _close(self) -> None:
        while self._outputs:
            os.close(self._outputs.pop())


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, READ_BYTES)
    except BlockingIOError:
        return b""
