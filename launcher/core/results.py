"""What became of a gang, decided from what its hosts reported. Pure: no Ray, no clock."""

import os
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from launcher.core.formatting import describe_status, host_name

NAMED = 8
"""So many hosts are listed by name."""

EXIT_STOPPED_ON_REQUEST = 75
PEER_LOST, STALE = "peer_lost", "stale"
MEANINGS = {
    64: "bad configuration",
    65: "bad data or numbers",
    EXIT_STOPPED_ON_REQUEST: "stopped on request",
    127: "the program could not be started",
    -signal.SIGABRT: "an abort in native code, see above",
    -signal.SIGKILL: "by hand, or by the kernel for want of memory",
    -signal.SIGSEGV: "a crash in native code",
}
"""Of exit codes and, negative, signals."""
NO_INITIALIZATION = "initialization failed, see above"
"""What SIGABRT means before the processes have found each other: JAX ends a program so."""


class EndReason(Enum):
    """The end of an attempt."""

    FINISHED = "finished"
    STOPPED = "stopped"
    """In order, because the user asked for it."""
    RESIZED = "resized"
    """In order, because this supervisor asked for it: there are more hosts now."""
    CRASH = "crash"
    HANG = "hang"
    LOST = "lost"
    """A host is gone, with all that it ran."""
    PREEMPTED = "preempted"
    """The programs were asked to stop, but not by the user."""
    FINAL = "final"
    """It would fail in the same way again: bad configuration, bad data or numbers."""

    @property
    def is_failure(self) -> bool:
        """Charged to `retries.failures`."""
        return self in (EndReason.CRASH, EndReason.HANG)

    @property
    def is_loss(self) -> bool:
        """Charged to `retries.preemptions`."""
        return self in (EndReason.LOST, EndReason.PREEMPTED)


@dataclass(frozen=True)
class AttemptResult:
    """The end of an attempt, as it is told to the supervisor."""

    kind: EndReason
    reason: str
    """In a sentence, with the host that it began with."""
    how: str = ""
    """What two failures in the same way have in common: an exit code, a signal, a phase."""
    process: int | None = None
    step: int | None = None
    """The last one that was completed in this attempt, by the host that it ended with."""
    ran_s: float = 0.0
    """How long the attempt took."""

    @property
    def is_unexplained(self) -> bool:
        """A stop that neither this launch nor a notice of the platform asked for."""
        return self.kind is EndReason.PREEMPTED and bool(self.how)


@dataclass(frozen=True)
class ProcessExit:
    """How a host's program ended. `status` is a wait status; None: lost with its host."""

    status: int | None
    ended_at: float
    """In seconds, by one clock for all hosts."""
    stopped: bool = False
    """Whether it was asked to end, so that its end says nothing."""
    tail: list[str] = field(default_factory=list)
    lost: str = ""
    """Why nothing more is known, where `status` is None."""
    said: str = ""
    """The kind of the program's last word, where it has one: `peer_lost`, `stale`."""
    initializing: bool = False
    """Whether the program had reported its start, and not yet that the processes are connected."""
    cause: str = ""
    """What the host knows of the cause of a signal; "": nothing."""
    host_lives: bool = False
    """Whether only the agent failed, where `status` is None: the host itself is there."""

    @property
    def code(self) -> int | None:
        """Its exit code; None where a signal or the loss of its host ended it."""
        if self.status is None or os.WIFSIGNALED(self.status):
            return None
        return os.waitstatus_to_exitcode(self.status)

    @property
    def in_order(self) -> bool:
        """Finished, or stopped with everything saved."""
        return self.code in (0, EXIT_STOPPED_ON_REQUEST)

    @property
    def failed(self) -> bool:
        return not (self.in_order or self.stopped)

    @property
    def is_aborted(self) -> bool:
        status = self.status
        return status is not None and os.waitstatus_to_exitcode(status) == -signal.SIGABRT

    @property
    def is_collateral(self) -> bool:
        """Whether this end follows from that of another host: it lost its peers."""
        return self.is_aborted or self.said == PEER_LOST


@dataclass(frozen=True)
class StalledHost:
    """A host that does not move, and where it was last seen."""

    process: int
    phase: str
    step: int
    """The last that it completed."""
    waited_s: float
    """How long it has been silent, or without progress."""


@dataclass(frozen=True)
class Hang:
    """The gang stands still, and the hosts that it waits for; in words by `str`."""

    behind: tuple[StalledHost, ...]
    silent: bool
    """Whether they are not heard at all, or heard without progress."""
    deadline_s: float
    everybody: bool
    """Whether no host is ahead of the others."""
    doing: str = ""
    """Where the first of them stands in its code, once somebody has looked."""
    key: str = ""
    """What raises the limit, in the job's `deadlines`; "": nothing does."""

    def __str__(self) -> str:
        first = self.behind[0]
        where = f"in {first.phase} after step {first.step}" if first.step else f"in {first.phase}"
        said = f"last heard of {where}, {first.waited_s:.0f} s ago"
        if not self.silent:
            waited_s = min(one.waited_s for one in self.behind)
            said = f"no progress {where} for {waited_s:.0f} s"
        limit = f"limit {self.deadline_s:.0f} s"
        if self.key:
            limit = f"{limit}: deadlines.{self.key} of the job"
        at = f"; {host_name(first.process)} stands at {self.doing}" if self.doing else ""
        return f"{self._names()}: {said} ({limit}){at}"

    def _names(self) -> str:
        count = len(self.behind)
        if self.everybody and count > 1:
            return f"all {count} hosts"
        more = f" and {count - NAMED} more" if count > NAMED else ""
        return ", ".join(host_name(one.process) for one in self.behind[:NAMED]) + more


@dataclass(frozen=True)
class GangResult:
    """The end of one attempt."""

    exits: dict[int, ProcessExit]
    failed_process: int | None
    """The first host that failed; None: none did."""
    hang: Hang | None = None
    """What ended it, where no host failed but none got on."""

    @property
    def ok(self) -> bool:
        """All hosts finished."""
        return self.failed_process is None and not self.stopped and self.hang is None

    @property
    def stopped(self) -> bool:
        """No host failed, but some ended before the job did: they were asked to."""
        is_whole = all(ended.code == 0 for ended in self.exits.values())
        return self.failed_process is None and not is_whole and self.hang is None

    @property
    def lost(self) -> list[int]:
        """The hosts of which nothing more is known: what they ran may run on."""
        return [process for process, ended in self.exits.items() if ended.status is None]

    @property
    def cut_off(self) -> str:
        """Of a stopped gang, what ended the first host that did not end in order; "": all did."""
        late = [(e.ended_at, process) for process, e in self.exits.items() if not e.in_order]
        return describe_exit(min(late)[1], self.exits[min(late)[1]]) if late else ""

    @property
    def code(self) -> int | None:
        """Exit code of the first host that failed; None where a signal or its host ended it."""
        return 0 if self.failed_process is None else self.exits[self.failed_process].code

    @property
    def reason(self) -> str:
        """In a sentence: "host-0003 was killed by SIGKILL"."""
        if self.hang is not None:
            return str(self.hang)
        if self.failed_process is None:
            return "stopped on request" if self.stopped else "all hosts finished"
        return describe_exit(self.failed_process, self.exits[self.failed_process])

    @property
    def tail(self) -> list[str]:
        """The last lines of the first host that failed."""
        return [] if self.failed_process is None else self.exits[self.failed_process].tail


def describe_exit(process: int, ended: ProcessExit) -> str:
    """What happened to a host, with what its exit status means where that is known."""
    if ended.status is None:
        end = "failed" if ended.host_lives else "was lost"
        return f"{host_name(process)} {end}: {ended.lost}"
    text = f"{host_name(process)} {describe_status(ended.status)}"
    meaning = ended.cause or MEANINGS.get(os.waitstatus_to_exitcode(ended.status))
    if ended.is_aborted and ended.initializing:
        meaning = NO_INITIALIZATION
    return f"{text} ({meaning})" if meaning else text


def first_failure(exits: Mapping[int, ProcessExit]) -> int | None:
    """The host that failed first, of those whose end follows from no other's."""
    failed = [process for process, ended in exits.items() if ended.failed]
    return min(
        failed,
        key=lambda process: (exits[process].is_collateral, exits[process].ended_at, process),
        default=None,
    )


def find_outliers(reports: Mapping[int, Mapping[str, Any]]) -> tuple[list[str], set[int]]:
    """Values in which hosts differ from most (or the first), a sentence each, and those hosts."""
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


def _flatten(report: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for name, value in report.items():
        key = f"{prefix}{name}"
        pairs += _flatten(value, f"{key}.") if isinstance(value, Mapping) else [(key, value)]
    return pairs


def _short(value: str) -> str:
    """Hashes by their first digits."""
    return value[:12] if len(value) == 64 else value


def missing_workers(alive: Sequence[tuple[str, int]], slices: int, hosts_per_slice: int) -> str:
    """Which hosts of which slices are missing, from (slice, worker) of those alive; "": none."""
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
