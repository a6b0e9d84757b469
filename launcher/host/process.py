"""One program on one host, as a child process: its events, its output, its end.

No Ray: the agent actor wraps it, and tests run it directly.
"""

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from launcher.core.events import SuspendedEvent
from launcher.host.log_writer import ROTATE_BYTES
from launcher.host.memory_kills import MemoryKills
from launcher.host.offer import Offer
from launcher.host.oom_score import OF_PROGRAMS
from launcher.host.output_tail import OutputLines
from launcher.host.process_tree import ProcessTree, ReaperError, TakenTree
from launcher.host.reaper_messages import Exited, Failed, Killed, LogWarning, Started
from launcher.host.stack_dump import dump_stacks, handles
from launcher.host.suspension import SUSPENDED_S, Suspension
from trainer.contract.protocol.environment import EVENTS_FD, START_FD
from trainer.contract.protocol.events import Event, WarningEvent
from trainer.contract.protocol.start import Start
from trainer.contract.protocol.wire import parse_event

EVENTS_PIPE_BYTES = 1 << 20  # about 4000 events, by which the driver may be late
POLL_INTERVAL_S, GATHER_S = 0.05, 0.03
SEARCH_PATHS = ("PATH", "PYTHONPATH")
"""Search paths: a program's entries precede the host's, so installed software stays reachable."""
REAPER_KILLED = "the reaper that guards its processes was killed, so all of them ended"
NOT_STARTED = 127 << 8
"""The wait status that a shell returns for a program that it does not find."""
KILLED_IN_A_SHELL = (128 + signal.SIGKILL) << 8
"""The wait status of a shell whose last command SIGKILL ended."""


@dataclass
class OutputUpdate:
    """The events, output and state of a program since the last update."""

    events: list[Event] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    status: int | None = None
    """Its wait status, once it has ended."""
    ended_ago_s: float | None = None
    """Seconds since it ended, once it has: hosts' clocks differ, elapsed time does not."""
    stopped: bool = False
    """Whether a stop was requested before it ended."""
    over: bool = False
    """Whether it and all processes that it started are gone and all their output was returned."""
    cause: str = ""
    """The cause of its end, besides the status; "" when unknown."""
    tail: list[str] = field(default_factory=list)
    """The last lines of its output, once over."""
    lost: str = ""
    """Why it ended without its own status; "" when unknown."""


class HostProcess:
    """A program that the constructor starts, in a process tree that ends with this process.

    A separate process (log_writer.py) writes the output to `log`: no crash of another process loses
    a byte, and nothing here stalls the program. `poll` reads the output from the log.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path | None,
        cwd: Path,
        grace_s: float,
        is_standby: bool = False,
    ) -> None:
        """Starts the program. One that `is_standby` waits for `begin`.

        The output of one without a `log` waits for `write_output`.
        """
        events, writing = os.pipe()
        _enlarge(events)
        os.set_blocking(events, False)
        passed, start_fd = {EVENTS_FD: writing}, None
        if is_standby:
            passed[START_FD], start_fd = os.pipe()
        fds = list(passed.values())
        try:
            reaped = ProcessTree(grace_s=grace_s, pass_fds=fds)
            whole = {**environment, **{name: str(fd) for name, fd in passed.items()}}
            reaped.start("program", command, whole, None, cwd, fds, ROTATE_BYTES, OF_PROGRAMS)
        finally:
            for fd in fds:
                os.close(fd)
        self._own(reaped, events, start_fd, environment, command)
        if log is not None:
            self.write_output(log)

    def _own(
        self,
        reaped: ProcessTree,
        events: int,
        start_fd: int | None,
        environment: Mapping[str, str],
        command: Sequence[str],
    ) -> None:
        self._command = command
        self._reaped, self._events, self._start_fd = reaped, events, start_fd
        self._environment = environment
        self._log: Path | None = None
        self._lines: OutputLines | None = None
        self._half_event = b""
        self._own_events: list[Event] = []
        self._pid: int | None = None
        self._failed_to_start: str | None = None
        self._ended_monotonic_s: float | None = None
        self._memory_kills = MemoryKills()
        self._suspension = Suspension()
        self._gone = self._events_closed = False
        self._result = OutputUpdate()

    @property
    def command(self) -> Sequence[str]:
        return self._command

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment in which it runs or waits."""
        return self._environment

    @property
    def is_waiting(self) -> bool:
        """Whether it is a standby program that has neither begun nor ended, as far as known."""
        return self._start_fd is not None

    def write_output(self, log: Path) -> None:
        """Appends the output of a program without a log to `log`, from its first byte on."""
        _make(log)
        self._log, self._lines = log, OutputLines(log)
        with suppress(ReaperError):  # `poll` reports that all is gone
            self._reaped.write_output(log)

    def begin(self, environment: Mapping[str, str]) -> None:
        """Lets a standby program start in `environment`; `poll` reports when it ended before."""
        assert self._start_fd is not None
        try:
            os.write(self._start_fd, Start.of(self._environment, environment).encode())
        except BrokenPipeError:
            pass
        self._close_start()

    def has_ended(self) -> bool:
        """Returns whether the program and all that it started are gone, without polling it."""
        events = select.poll()
        events.register(self._events, 0)
        return bool(events.poll(0))

    def is_ready(self) -> bool:
        """Returns whether a standby program waits; `poll` then returns only later events."""
        return not self.has_ended() and self.poll(0.0).ended_ago_s is None

    def offer(self) -> Offer:
        """Returns how another process of this machine takes over this standby program.

        It must not be polled here, before or after.
        """
        assert self._start_fd is not None
        lifeline, answers = self._reaped.pipes
        return Offer(
            owner=os.getpid(),
            lifeline=lifeline,
            answers=answers,
            events=self._events,
            start=self._start_fd,
            command=self._command,
            environment=self._environment,
        )

    def let_go(self) -> None:
        """Closes the pipes: the program ends, unless another process has taken it over."""
        self._reaped.release()
        self._close_start()
        if self._lines is not None:
            self._lines.close()
        os.close(self._events)

    def end(self) -> None:
        """Ends the program without time to save, and waits until it is gone."""
        self._reaped.close()
        self.let_go()

    def poll(self, wait_s: float) -> OutputUpdate:
        """Returns the next update; waits up to `wait_s` for it, and a moment for what follows."""
        deadline = time.monotonic() + wait_s
        update = self._read(min(POLL_INTERVAL_S, wait_s))
        while not _is_news(update) and time.monotonic() < deadline:
            update = self._read(POLL_INTERVAL_S)
        return update

    def stop(self, grace_s: float | None = None) -> None:
        """Ends the program; `poll` reports when it is over.

        The whole tree gets SIGTERM, the short grace of the constructor, then SIGKILL. With
        `grace_s`, only the program gets SIGTERM and that time to save; then its tree is ended.
        """
        if self._ended_monotonic_s is None:
            self._result.stopped = True
        if grace_s is None:
            self._reaped.let_go()
        elif not self._gone:
            self._reaped.ask_to_end(grace_s)

    def stacks(self, wait_s: float) -> str:
        """Returns the stacks of all threads of the program within `wait_s`, and logs them.

        Returns "" when it does not run. Safe to call during `poll` from another thread, or after.
        """
        if self._pid is None or self._log is None or self._ended_monotonic_s is not None:
            return ""
        try:
            ask = partial(self._reaped.send, signal.SIGUSR1)
            return dump_stacks(self._pid, ask, self._log, wait_s)
        except ReaperError:
            return ""

    def send(self, number: signal.Signals) -> bool:
        """Sends a signal that the program handles; returns False when it does not, or is gone."""
        if self._pid is None or self._ended_monotonic_s is not None:
            return False
        if not handles(self._pid, number):
            return False
        try:
            self._reaped.send(number)
        except ReaperError:
            return False
        return True

    def _read(self, wait_s: float) -> OutputUpdate:
        """Reads the state before the output, so that no output from before the end is missed."""
        if self._result.over:
            return replace(self._result, ended_ago_s=self._ended_ago_s())
        if not self._gone:
            self._wait(wait_s)
            self._memory_kills.poll(self._pid)
            self._watch_suspension()
            self._read_answers()
        gone = self._gone
        events = self._read_events()
        lines, is_all = self._lines.read(last=gone) if self._lines else ([], True)
        if gone and is_all:
            lines += self._finish()
        return replace(self._result, events=events, lines=lines, ended_ago_s=self._ended_ago_s())

    def _finish(self) -> list[str]:
        """Marks the update as over; returns a last line that is not the program's own."""
        failed = self._failed_to_start
        last_line = [f"could not start the program: {failed}"] if failed else []
        self._result.over, self._result.tail = True, last_line
        if self._lines is not None:
            self._result.tail = [*self._lines.tail, *last_line]
            self._lines.close()
        os.close(self._events)
        self._close_start()
        return last_line

    def _close_start(self) -> None:
        fd, self._start_fd = self._start_fd, None
        if fd is not None:
            os.close(fd)

    def _wait(self, wait_s: float) -> None:
        """Waits for an event, and a moment for those that follow; an end is not delayed."""
        sources = [self._reaped] if self._events_closed else [self._reaped, self._events]
        readable, _, _ = select.select(sources, [], [], wait_s)
        if readable == [self._events]:
            select.select([self._reaped], [], [], GATHER_S)

    def _read_answers(self) -> None:
        answers = self._reaped.answers(0.0)
        self._gone = answers is None
        for answer in answers or []:
            match answer:
                case Killed() if self._result.status is None:
                    self._result.lost = REAPER_KILLED
                case Exited(status=status, monotonic_s=ended_s) if not self._result.lost:
                    self._result.status = status
                    self._ended_monotonic_s = ended_s
                    self._result.cause = self._cause(status)
                    self._reaped.let_go()  # processes that it left behind end too
                case Started(pid=pid):
                    self._pid = pid
                case Failed(reason=reason):
                    self._failed_to_start = reason
                    self._result.status = NOT_STARTED
                case LogWarning(text=text):
                    self._own_events.append(_warning(text))
                case _:
                    pass
        if self._gone and self._ended_monotonic_s is None:
            self._ended_monotonic_s = time.monotonic()

    def _cause(self, status: int) -> str:
        """Returns why the kernel sent SIGKILL; "" unless memory was short and Slipway sent none."""
        was_killed = status in (signal.SIGKILL, KILLED_IN_A_SHELL) and not self._result.stopped
        if not was_killed or not self._memory_kills.lately():
            return ""
        return f"by the kernel, out of memory: {self._memory_kills.figures()}"

    def _watch_suspension(self) -> None:
        now_s = time.monotonic()
        if self._pid is not None and self._suspension.begins(self._pid, now_s):
            self._own_events.append(SuspendedEvent(time=time.time(), seconds=SUSPENDED_S))

    def _ended_ago_s(self) -> float | None:
        ended = self._ended_monotonic_s
        return None if ended is None else max(0.0, time.monotonic() - ended)

    def _read_events(self) -> list[Event]:
        own, self._own_events = self._own_events, []
        try:
            chunk = os.read(self._events, EVENTS_PIPE_BYTES)
        except BlockingIOError:
            return own
        self._events_closed = not chunk
        *lines, self._half_event = (self._half_event + chunk).split(b"\n")
        return own + [event for line in lines if (event := parse_event(line)) is not None]


class TakenProcess(HostProcess):
    """A standby program that another process of this machine has started."""

    def __init__(self, offer: Offer) -> None:
        """Takes it over. Raises OSError when the owner is gone."""
        start_fd, events = offer.open_writing(offer.start), offer.open_reading(offer.events)
        self._own(TakenTree(offer), events, start_fd, offer.environment, offer.command)


def _is_news(update: OutputUpdate) -> bool:
    return bool(update.events or update.lines or update.over)


def _warning(message: str) -> WarningEvent:
    return WarningEvent(time=time.time(), category="log", message=message)


def _make(log: Path) -> None:
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.touch()
    except OSError:
        pass  # as when the disk fills later: the relay warns, and the program runs


def _enlarge(pipe: int) -> None:
    import fcntl

    try:
        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, EVENTS_PIPE_BYTES)
    except OSError:
        pass  # over the user's quota: the kernel's default of 64 KiB holds 200 events
