"""The owner's side of `launcher/host/reaper.py`: processes that cannot outlive their owner."""

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from launcher.core.errors import InternalError
from launcher.core.messages import MessageReader
from launcher.host.offer import Offer
from launcher.host.reaper_messages import ANSWER_TYPES, Answer, Failed, Ready

REAPER = Path(__file__).with_name("reaper.py")
READY_TIMEOUT_S = 20.0


class ReaperError(InternalError):
    """The reaper failed to set up or start something, or ended itself."""


class ProcessTree:
    """Commands whose whole process trees end when this object closes or its process dies.

    `folders` are made now and deleted at the end; `setup` commands run now, `cleanup` at the end.
    Raises ReaperError when a folder or a setup command fails.
    """

    def __init__(
        self,
        folders: Sequence[Path] = (),
        setup: Sequence[Sequence[str]] = (),
        cleanup: Sequence[Sequence[str]] = (),
        grace_s: float = 0.0,
        pass_fds: Sequence[int] = (),
    ) -> None:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(REAPER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # a warm cluster must not hold the terminal or a pipe open
            pass_fds=tuple(pass_fds),
            start_new_session=True,
        )
        assert process.stdin and process.stdout
        self._own(process.stdin, process.stdout)
        # It forks: the reaper is not a child of this process, so that no exit hook ends it.
        if code := process.wait():
            raise ReaperError(f"the reaper process failed to start: exit code {code}")
        self._ask(
            folders=[str(folder) for folder in folders],
            setup=[list(command) for command in setup],
            cleanup=[list(command) for command in cleanup],
            grace_s=grace_s,
        )
        self.pid = self._ready(READY_TIMEOUT_S)

    def _own(self, lifeline: IO[bytes], answers: IO[bytes]) -> None:
        self._lifeline, self._answers = lifeline, answers
        self._rest = b""
        self._reader = MessageReader(ANSWER_TYPES, "the reaper", ReaperError)
        self._ended = False

    def start(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path | None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
        rotate_bytes: int | None = None,
        oom_score: int | None = None,
    ) -> None:
        """Starts a command, and appends both of its outputs to `log`.

        With `rotate_bytes`, a separate process writes it, see `launcher/host/log_writer.py`, and
        the output of a command without a `log` waits for `write_output`.
        `oom_score`: see `launcher/host/oom_score.py`.
        """
        self._ask(
            start={
                "name": name,
                "argv": list(argv),
                "env": dict(env),
                "cwd": None if cwd is None else str(cwd),
                "log": None if log is None else str(log),
                "pass_fds": list(pass_fds),
                "rotate_bytes": rotate_bytes,
                "oom_score": oom_score,
            }
        )

    def write_output(self, log: Path) -> None:
        """Appends the output of a command that has no log to `log`, from its first byte on."""
        self._ask(log=str(log))

    def ask_to_end(self, grace_s: float) -> None:
        """Sends SIGTERM to the commands, and ends everything after `grace_s`."""
        try:
            self._ask(end={"grace_s": grace_s})
        except ReaperError:
            pass  # all of it is gone already

    def send(self, number: int) -> None:
        """Sends a signal to the commands alone, not to what they started."""
        self._ask(signal=number)

    def fileno(self) -> int:
        """Returns a descriptor for `select` that is readable when answers are available."""
        return self._answers.fileno()

    @property
    def pipes(self) -> tuple[int, int]:
        """The descriptors of the pipes to and from the reaper, for an `Offer`."""
        return self._lifeline.fileno(), self._answers.fileno()

    def detach(self) -> None:
        """Lets everything outlive this process, for a cluster that is kept warm."""
        self._ask(detach=True)
        self._lifeline.close()
        self._answers.close()
        self._ended = True

    def release(self) -> None:
        """Closes the pipes: everything ends, unless another process has taken it over."""
        self.let_go()
        self._answers.close()
        self._ended = True

    def answers(self, timeout_s: float) -> list[Answer] | None:
        """Returns the reaper's new answers; waits up to `timeout_s` for them.

        Returns None when the reaper and everything else is gone. Raises ReaperError for an answer
        that is not understood.
        """
        if self._ended:
            return None
        if not select.select([self._answers], [], [], timeout_s)[0]:
            return []
        chunk = os.read(self._answers.fileno(), 1 << 16)
        if not chunk:
            self._ended = True
            self._answers.close()
            self.let_go()
            return None
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [answer for line in lines if (answer := self._reader.parse(line))]

    def close(self, timeout_s: float = 60.0) -> bool:
        """Ends everything and waits; returns False if something still lives after `timeout_s`."""
        self.let_go()
        deadline = time.monotonic() + timeout_s
        while self.answers(max(0.0, deadline - time.monotonic())) is not None:
            if time.monotonic() >= deadline:
                return False
        return True

    def let_go(self) -> None:
        """Closes the lifeline: the tree then ends by itself."""
        try:
            self._lifeline.close()
        except BrokenPipeError:
            pass

    def _ask(self, **request: object) -> None:
        try:
            self._lifeline.write(json.dumps(request).encode() + b"\n")
            self._lifeline.flush()
        except (BrokenPipeError, ValueError) as error:  # it is gone, or the lifeline is closed
            raise ReaperError("the reaper process has ended") from error

    def _ready(self, timeout_s: float) -> int:
        deadline = time.monotonic() + timeout_s
        while (left := deadline - time.monotonic()) > 0:
            answers = self.answers(left)
            if answers is None:
                raise ReaperError("the reaper process has ended")
            for answer in answers:
                if isinstance(answer, Ready):
                    return answer.pid
                if isinstance(answer, Failed):
                    self.close()
                    raise ReaperError(answer.reason)
        self.let_go()
        raise ReaperError(f"the reaper process did not start within {timeout_s:.0f} s")


class TakenTree(ProcessTree):
    """A process tree that another process of this machine has started."""

    def __init__(self, offer: Offer) -> None:
        """Takes over its reaper. Raises OSError when the owner is gone."""
        lifeline = os.fdopen(offer.open_writing(offer.lifeline), "wb")
        self._own(lifeline, os.fdopen(offer.open_reading(offer.answers), "rb"))


def start_time(pid: int) -> int | None:
    """Returns when a process started, in ticks since boot; None when it has ended.

    Together with its id, this identifies a process exactly.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if stat[0] == b"Z" else int(stat[19])
