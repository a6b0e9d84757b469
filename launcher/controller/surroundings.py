"""What a run controller works with: a clock, hosts, a record, a display and requests.

A run has the real ones. A rehearsal (`launcher/rehearsal/`) has a clock of its own, and stubs of
hosts that live by it.
"""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from launcher.core.events import Listener
from launcher.core.results import AttemptResult, GangResult
from launcher.core.states import RunState
from launcher.gang.agent_pool import Member
from launcher.gang.gang import Program
from launcher.gang.monitor import GangMonitor
from launcher.gang.preflight import Seen
from launcher.planning.spec import LaunchSpec
from launcher.requests.inbox import Received
from launcher.requests.messages import Answer, Request
from launcher.runs.usage import UsageAccount
from trainer.contract.planning.plan import BasePlan, World
from trainer.contract.protocol.events import CheckedEvent, Event

POLL_INTERVAL_S = 0.2


class Clock(Protocol):
    """The time, and waits."""

    def monotonic(self) -> float:
        """Returns seconds that only increase."""
        ...

    def time(self) -> float:
        """Returns seconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None: ...

    def wait_for_change(self, limit_s: float) -> None:
        """Waits until hosts may have come or gone, for at most `limit_s`."""
        ...


class SystemClock:
    """The clock of this machine."""

    def monotonic(self) -> float:
        return time.monotonic()

    def time(self) -> float:
        return time.time()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def wait_for_change(self, limit_s: float) -> None:
        time.sleep(max(0.0, min(limit_s, POLL_INTERVAL_S)))


class AnyGang(Protocol):
    """The hosts of an attempt, see `launcher.gang.gang.Gang`."""

    @property
    def size(self) -> int: ...

    @property
    def members(self) -> Sequence[Member]: ...

    def run(
        self,
        program: Program,
        coordinator_port: int | None = None,
        monitor: GangMonitor | None = None,
    ) -> GangResult: ...

    def run_preflight(self, platform: str) -> dict[int, Seen]: ...

    def check(
        self, program: Program, known: Mapping[int, CheckedEvent] | None = None
    ) -> dict[int, CheckedEvent]: ...


class AnyHostPool(Protocol):
    """The hosts of a run, see `launcher.gang.host_pool.HostPool`."""

    def gang(self, launch: LaunchSpec) -> AnyGang: ...

    @property
    def current(self) -> AnyGang | None: ...

    def watched(self, launch: LaunchSpec) -> Collection[int]: ...

    def exclude(self, process: int) -> None: ...

    def ban(self, processes: Collection[int]) -> None: ...

    def unknown(self, gang: Any) -> list[int]: ...

    def known(self, gang: Any) -> dict[int, CheckedEvent]: ...

    def know(self, gang: Any, reports: Mapping[int, CheckedEvent]) -> None: ...

    def regroup(self, outcome: GangResult | None) -> None: ...

    def dismiss(self, suspects: Collection[int] = (), lost_hosts: Collection[int] = ()) -> None: ...

    def available_hosts(self, world: World) -> int: ...

    def keep_spares(self, launch: LaunchSpec) -> None: ...

    def give_up_hosts(self) -> None: ...

    def keep_agents(self) -> None: ...

    def check_head(self) -> None: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class RunRecord(Protocol):
    """The record of a run, see `launcher.runs.directory.RunDir`."""

    @property
    def folder(self) -> Path: ...

    def usage(self) -> UsageAccount: ...

    def write_smaller_plans(self, plans: Iterable[BasePlan]) -> None: ...

    def observe(self, observer: Callable[[Event], None]) -> None: ...

    def add_event(self, event: Event) -> None: ...

    def begin(self, launch: LaunchSpec) -> None: ...

    def set_state(self, state: RunState, *, reason: str = "") -> None: ...

    def end_attempt(self, ending: AttemptResult) -> None: ...


class Display(Protocol):
    """What the user sees of a run, see `launcher.ui.progress.RunDisplay`."""

    def on_event(self, event: Event) -> None: ...

    def on_line(self, process: int, line: str) -> None: ...

    def status(self, text: str) -> None: ...

    def stopping(self, why: str = "") -> None: ...

    def attempt(self, launch: LaunchSpec) -> None: ...

    def attempt_ended(self, ending: AttemptResult) -> None: ...


class Requests(Protocol):
    """The requests of commands to a run, see `launcher.requests.inbox.Inbox`."""

    def take(self) -> list[Received]: ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Surroundings(Protocol):
    """What a controller works with besides the record and the display of its run."""

    @property
    def clock(self) -> Clock: ...

    def host_pool(self, listener: Listener, whole: LaunchSpec) -> AnyHostPool:
        """Returns the run's hosts, none of which is acquired yet.

        `whole`: the launch on all hosts that the run may get.
        """
        ...

    def requests(self, run: RunRecord, at_once: Callable[[Request], Answer | None]) -> Requests:
        """Returns the requests of commands to the run.

        `at_once` answers a request that needs no program, and returns None for others.
        """
        ...
