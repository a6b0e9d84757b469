"""The result of a gang, derived from the reports of its hosts. Pure: no Ray, no clock."""

import os
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field

from launcher.core.formatting import describe_status, plural
from launcher.core.states import EndReason
from trainer.contract.protocol.events import PEER_LOST
from trainer.contract.protocol.exit_codes import ProgramExit
from trainer.contract.protocol.process_names import process_name, process_noun

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
    processes_per_host: int = 1

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
        at = f"; {self._name(first)} is at {self.doing}" if self.doing else ""
        return f"{self._names()}: {text} ({limit}){at}"

    def _names(self) -> str:
        count = len(self.behind)
        if self.everybody and count > 1:
            return f"all {count} {plural(process_noun(self.processes_per_host))}"
        more = f" and {count - NAMED} more" if count > NAMED else ""
        return ", ".join(map(self._name, self.behind[:NAMED])) + more

    def _name(self, stalled: StalledHost) -> str:
        return process_name(stalled.process, self.processes_per_host)


@dataclass(frozen=True)
class GangResult:
    """The result of one attempt."""

    exits: dict[int, ProcessExit]
    failed_process: int | None
    """The first host that failed; None when none did."""
    hang: Hang | None = None
    """The hang that ended the attempt, when no host failed but none made progress."""
    processes_per_host: int = 1

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
        return self.describe_exit(min(late)[1]) if late else ""

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
        return self.describe_exit(self.failed_process)

    def describe_exit(self, process: int) -> str:
        """Describes the end of a process; see the function of the same name."""
        return describe_exit(process, self.exits[process], self.processes_per_host)

    @property
    def tail(self) -> list[str]:
        """The last output lines of the first host that failed."""
        return [] if self.failed_process is None else self.exits[self.failed_process].tail


def describe_exit(process: int, ended: ProcessExit, processes_per_host: int = 1) -> str:
    """Describes the end of a host's program, with the meaning of its exit status if known."""
    name = process_name(process, processes_per_host)
    if ended.status is None:
        end = "failed" if ended.host_lives else "was lost"
        return f"{name} {end}: {ended.lost}"
    text = f"{name} {describe_status(ended.status)}"
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
