"""The result of a gang, derived from the reports of its hosts. Pure: no Ray, no clock."""

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from launcher.core.formatting import describe_status, host_name
from trainer.contract.protocol.events import PEER_LOST
from trainer.contract.protocol.exit_codes import ProgramExit

NAMED = 8
"""Maximum number of hosts named in a message."""

MEANINGS = {
    ProgramExit.BAD_CONFIGURATION: "bad configuration",
    ProgramExit.BAD_DATA: "bad data or numbers",
    ProgramExit.STOPPED: "stopped on request",
    ProgramExit.NOT_STARTED: "the program could not be started",
    -signal.SIGABRT: "an abort in native code, see above",
    -signal.SIGKILL: "by hand, or by the kernel when memory ran out",
    -signal.SIGSEGV: "a crash in native code",
}
"""Meanings of exit codes and, as negative numbers, of signals."""
NO_INITIALIZATION = "initialization failed, see above"
"""Meaning of SIGABRT before the processes are connected: JAX ends a program with it."""


class RunState(StrEnum):
    """The state of a run. Those from LOST on are found when its folder is read."""

    QUEUED = "queued"
    """Waits in the queue of a cluster, which starts it."""
    PROVISIONING = "provisioning"
    """Acquires hosts."""
    STARTING = "starting"
    """Checks the hosts and starts the program."""
    RUNNING = "running"
    BACKING_OFF = "backing_off"
    """Waits before the next attempt, after a failure."""
    WAITING_FOR_HOSTS = "waiting_for_hosts"
    WAITING_FOR_RUNS = "waiting_for_runs"
    """Waits for the runs in the job's `after`."""
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"
    """Stopped by `launch stop` or SIGTERM."""
    INTERRUPTED = "interrupted"
    """Stopped by Ctrl-C or a closed terminal."""
    OVER_BUDGET = "over_budget"
    """Stopped because the job's budget was used up."""
    CANCELLED = "cancelled"
    """Never started: a run in the job's `after` ended without finishing."""
    LOST = "lost"
    """The launcher process exited without recording a result."""
    REMOTE = "remote"
    """Driven by another machine."""
    BY_HAND = "by hand"
    """Started without a launcher."""
    UNKNOWN = "unknown"
    """The folder does not show whether a process runs the run."""

    @property
    def is_terminal(self) -> bool:
        """Whether the run has ended; it can be resumed unless it has finished."""
        return self in _TERMINAL

    @property
    def is_waiting(self) -> bool:
        """Whether the run waits for its next attempt."""
        return self in (
            RunState.BACKING_OFF, RunState.WAITING_FOR_HOSTS, RunState.WAITING_FOR_RUNS
        )  # fmt: skip


_TERMINAL = frozenset(
    [
        RunState.FINISHED, RunState.FAILED, RunState.STOPPED, RunState.INTERRUPTED,
        RunState.OVER_BUDGET, RunState.CANCELLED, RunState.LOST,
    ]
)  # fmt: skip


class EndReason(StrEnum):
    """The reason that an attempt ended."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """An orderly stop that the user requested."""
    RESIZED = "resized"
    """An orderly stop that the supervisor requested, because more hosts are available."""
    SHRUNK = "shrunk"
    """An orderly stop that the supervisor requested, because a queue gives hosts to another run."""
    BUDGET = "budget"
    """An orderly stop that the supervisor requested, because the budget is used up."""
    CRASH = "crash"
    HANG = "hang"
    LOST = "lost"
    """The loss of a host with everything that ran on it."""
    PREEMPTED = "preempted"
    """A stop of the programs that the user did not request."""
    REWOUND = "rewound"
    """The program goes back to a checkpoint, without the examples of a step with a spike."""
    WRONG_HOST = "wrong_host"
    """A host computes wrong numbers: the program goes back to a checkpoint, without that host."""
    FINAL = "final"
    """A failure that a retry would repeat: bad configuration, bad data or numbers."""

    @property
    def is_resize(self) -> bool:
        """Whether the next attempt has another number of hosts on purpose."""
        return self in (EndReason.RESIZED, EndReason.SHRUNK)

    @property
    def is_restart(self) -> bool:
        """Whether the next attempt follows on purpose, so that the end is no failure."""
        return self.is_resize or self in (EndReason.REWOUND, EndReason.WRONG_HOST)

    @property
    def is_failure(self) -> bool:
        """Whether the end counts against `retries.failures`."""
        return self in (EndReason.CRASH, EndReason.HANG)

    @property
    def is_orderly(self) -> bool:
        """Whether the program ended by itself, with everything saved."""
        return self in (
            EndReason.FINISHED, EndReason.STOPPED, EndReason.RESIZED, EndReason.SHRUNK,
            EndReason.BUDGET, EndReason.REWOUND, EndReason.WRONG_HOST,
        )  # fmt: skip

    @property
    def is_loss(self) -> bool:
        """Whether the end counts against `retries.preemptions`."""
        return self in (EndReason.LOST, EndReason.PREEMPTED)


@dataclass(frozen=True)
class AttemptResult:
    """The end of an attempt, as it is reported to the supervisor."""

    end_reason: EndReason
    reason: str
    """One sentence, with the host where the end began."""
    how: str = ""
    """The property shared by repeated failures: an exit code, a signal or a phase."""
    process: int | None = None
    step: int | None = None
    """The last step completed in this attempt by the host that ended it."""
    ran_s: float = 0.0
    """Seconds that the attempt took."""

    @property
    def is_unexplained(self) -> bool:
        """Whether neither this launch nor a notice of the platform requested the stop."""
        return self.end_reason is EndReason.PREEMPTED and bool(self.how)


@dataclass(frozen=True)
class ProcessExit:
    """The end of a host's program. `status` is a wait status, or None when it was lost."""

    status: int | None
    ended_at: float
    """Seconds, by one clock for all hosts."""
    stopped: bool = False
    """Whether it received a request to end, so that its status carries no information."""
    tail: list[str] = field(default_factory=list)
    lost: str = ""
    """The reason that nothing more is known, when `status` is None."""
    final_report: str = ""
    """Kind of the program's final report, `peer_lost`, `stale`, `rewound` or `wrong_host`; ""
    without one."""
    initializing: bool = False
    """Whether the program had reported its start, and not yet that the processes are connected."""
    cause: str = ""
    """The cause of a signal, as far as the host knows it; "" when unknown."""
    host_lives: bool = False
    """Whether the host is alive and only its agent failed, when `status` is None."""

    @property
    def code(self) -> int | None:
        """The exit code; None when a signal or the loss of its host ended the program."""
        if self.status is None or os.WIFSIGNALED(self.status):
            return None
        return os.waitstatus_to_exitcode(self.status)

    @property
    def in_order(self) -> bool:
        """Whether the program finished, or stopped with everything saved."""
        return self.code in (ProgramExit.FINISHED, ProgramExit.STOPPED)

    @property
    def failed(self) -> bool:
        return not (self.in_order or self.stopped)

    @property
    def is_aborted(self) -> bool:
        status = self.status
        return status is not None and os.waitstatus_to_exitcode(status) == -signal.SIGABRT

    @property
    def is_collateral(self) -> bool:
        """Whether this end follows from that of another host: the program lost its peers."""
        return self.is_aborted or self.final_report == PEER_LOST


@dataclass(frozen=True)
class StalledHost:
    """A host without progress, and its last known position."""

    process: int
    phase: str
    step: int
    """The last step that it completed."""
    waited_s: float
    """Seconds that it has been silent or without progress."""


@dataclass(frozen=True)
class Hang:
    """A gang without progress, with the hosts that it waits for; `str` describes it."""

    behind: tuple[StalledHost, ...]
    silent: bool
    """Whether the hosts behind send nothing at all, rather than events without progress."""
    deadline_s: float
    everybody: bool
    """Whether all hosts are behind, so that none is ahead of the rest."""
    doing: str = ""
    """Position of the first of them in its code; "" until its stack was read."""
    key: str = ""
    """Key in the job's `deadlines` that raises the limit; "" when none does."""
    suspended: bool = False
    """Whether the kernel has stopped the programs of the hosts behind, as SIGSTOP does."""
    idle: bool = False
    """Whether the programs of the hosts behind sleep, which shortens the limit."""

    def __str__(self) -> str:
        first = self.behind[0]
        where = f"in {first.phase} after step {first.step}" if first.step else f"in {first.phase}"
        text = f"last heard of {where}, {first.waited_s:.0f} s ago"
        if self.suspended:
            text = f"stopped by a signal (SIGSTOP) {where}"
        elif not self.silent:
            waited_s = min(one.waited_s for one in self.behind)
            waits = "idle, no progress" if self.idle else "no progress"
            text = f"{waits} {where} for {waited_s:.0f} s"
        limit = f"limit {self.deadline_s:.0f} s"
        if self.key:
            limit = f"{limit}: deadlines.{self.key} of the job"
        at = f"; {host_name(first.process)} is at {self.doing}" if self.doing else ""
        return f"{self._names()}: {text} ({limit}){at}"

    def _names(self) -> str:
        count = len(self.behind)
        if self.everybody and count > 1:
            return f"all {count} hosts"
        more = f" and {count - NAMED} more" if count > NAMED else ""
        return ", ".join(host_name(one.process) for one in self.behind[:NAMED]) + more


@dataclass(frozen=True)
class GangResult:
    """The result of one attempt."""

    exits: dict[int, ProcessExit]
    failed_process: int | None
    """The first host that failed; None when none did."""
    hang: Hang | None = None
    """The hang that ended the attempt, when no host failed but none made progress."""

    @property
    def ok(self) -> bool:
        """Whether all hosts finished."""
        return self.failed_process is None and not self.stopped and self.hang is None

    @property
    def stopped(self) -> bool:
        """Whether no host failed, but some ended before the job did, on request."""
        is_whole = all(ended.code == 0 for ended in self.exits.values())
        return self.failed_process is None and not is_whole and self.hang is None

    @property
    def lost(self) -> list[int]:
        """Hosts of unknown state, whose programs may still be running."""
        return [process for process, ended in self.exits.items() if ended.status is None]

    @property
    def lost_hosts(self) -> list[int]:
        """Those of `lost` whose hosts are gone too, not only their agents."""
        return [process for process in self.lost if not self.exits[process].host_lives]

    @property
    def cut_off(self) -> str:
        """The first program of a stopped gang that did not end in order, as text; "" for none."""
        late = [(e.ended_at, process) for process, e in self.exits.items() if not e.in_order]
        return describe_exit(min(late)[1], self.exits[min(late)[1]]) if late else ""

    @property
    def code(self) -> int | None:
        """Exit code of the first failed host; 0 without failure, None after a signal or a loss."""
        return 0 if self.failed_process is None else self.exits[self.failed_process].code

    @property
    def reason(self) -> str:
        """One sentence: "host-0003 was killed by SIGKILL"."""
        if self.hang is not None:
            return str(self.hang)
        if self.failed_process is None:
            return "stopped on request" if self.stopped else "all hosts finished"
        return describe_exit(self.failed_process, self.exits[self.failed_process])

    @property
    def tail(self) -> list[str]:
        """The last output lines of the first host that failed."""
        return [] if self.failed_process is None else self.exits[self.failed_process].tail


def describe_exit(process: int, ended: ProcessExit) -> str:
    """Describes the end of a host's program, with the meaning of its exit status if known."""
    if ended.status is None:
        end = "failed" if ended.host_lives else "was lost"
        return f"{host_name(process)} {end}: {ended.lost}"
    text = f"{host_name(process)} {describe_status(ended.status)}"
    meaning = ended.cause or MEANINGS.get(os.waitstatus_to_exitcode(ended.status))
    if ended.is_aborted and ended.initializing:
        meaning = NO_INITIALIZATION
    return f"{text} ({meaning})" if meaning else text


def first_failure(exits: Mapping[int, ProcessExit]) -> int | None:
    """Returns the host that failed first, or None; hosts that lost their peers come last."""
    failed = [process for process, ended in exits.items() if ended.failed]
    return min(
        failed,
        key=lambda process: (exits[process].is_collateral, exits[process].ended_at, process),
        default=None,
    )


def find_outliers(reports: Mapping[int, Mapping[str, object]]) -> tuple[list[str], set[int]]:
    """Returns a sentence for each value that is not the same on all hosts, and the outliers.

    An outlier differs from the most common value, or from the first host's in a tie.
    """
    flat = {process: dict(_flatten(reports[process])) for process in sorted(reports)}
    texts: list[str] = []
    processes: set[int] = set()
    for name in sorted({name for report in flat.values() for name in report}):
        values = {process: str(report.get(name, "missing")) for process, report in flat.items()}
        common, _ = Counter(values.values()).most_common(1)[0]
        odd = {process: value for process, value in values.items() if value != common}
        if odd:
            texts.append(_difference(name, odd, common))
            processes |= odd.keys()
    return texts, processes


def _difference(name: str, odd: Mapping[int, str], common: str) -> str:
    others = ", ".join(f"{host_name(p)} has {_short(value)}" for p, value in odd.items())
    return f"{name} differs: {others}; the other hosts have {_short(common)}"


def _flatten(report: Mapping[str, object], prefix: str = "") -> list[tuple[str, object]]:
    pairs: list[tuple[str, object]] = []
    for name, value in report.items():
        key = f"{prefix}{name}"
        pairs += _flatten(value, f"{key}.") if isinstance(value, Mapping) else [(key, value)]
    return pairs


def _short(value: str) -> str:
    """Shortens a hash to its first digits."""
    return value[:12] if len(value) == 64 else value


def missing_workers(alive: Sequence[tuple[str, int]], slices: int, hosts_per_slice: int) -> str:
    """Describes the missing hosts of each slice, given (slice, worker) of those alive.

    Returns "" when none is missing.
    """
    found: dict[str, set[int]] = {}
    for name, worker in alive:
        found.setdefault(name, set()).add(worker)
    whole = [name for name, workers in found.items() if len(workers) >= hosts_per_slice]
    if len(whole) >= slices:
        return ""
    parts = []
    for name, workers in sorted(found.items()):
        absent = sorted(set(range(hosts_per_slice)) - workers)
        if absent:
            numbers = ", ".join(map(str, absent))
            word = "worker" if name else "host"
            who = f"{word} {numbers} is" if len(absent) == 1 else f"{word}s {numbers} are"
            of_slice = f" of {name}" if name else ""
            present = f"{len(workers)} of {hosts_per_slice} hosts{of_slice} are alive"
            parts.append(f"{present}; {who} missing")
    if not found:
        return f"none of the {slices * hosts_per_slice} hosts is alive"
    if len(found) < slices:
        parts.append(f"{len(found)} of {slices} slices have a host alive")
    return "; ".join(parts)
