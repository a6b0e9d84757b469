"""The hosts of a rehearsal: they are lost, preempted and replaced as its faults say.

Hosts are lost and replaced in units: a slice of TPUs or of several slices, else one host.
"""

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

from launcher.core.errors import HostError
from launcher.core.events import Listener, PreemptionNoticeEvent
from launcher.core.results import GangResult
from launcher.gang.agent_calls import LostError
from launcher.gang.agent_pool import Member
from launcher.gang.gang import Program
from launcher.gang.host_selection import Host
from launcher.gang.monitor import GangMonitor
from launcher.gang.preflight import Seen
from launcher.planning.spec import LaunchSpec
from launcher.providers.ray.host_cluster import AVOIDED_S
from launcher.rehearsal.clock import VirtualClock
from launcher.rehearsal.faults import Fault, FaultKind
from launcher.rehearsal.timings import Timings
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import CheckedEvent
from trainer.contract.protocol.process_names import host_name

HOSTS_CHECK_S = 1.01
"""Seconds after which the monitor of an attempt surely looks again whether hosts have come."""
SHOWN_PROCESSES = 2
"""Processes that stand for all healthy ones: their events are alike."""


@dataclass(eq=False)
class Unit:
    """Hosts that are lost and replaced together. Two units are never equal."""

    number: int
    hosts: int
    is_up: bool = True
    is_leaving: bool = False
    """Whether the platform has announced that it will take it."""
    is_ready: bool = True
    """Whether its agents are up. At the begin, those of all units start together."""
    is_known: bool = False
    """Whether its hosts were checked."""
    avoided_until_s: float = 0.0

    @property
    def is_usable(self) -> bool:
        return self.is_up and not self.is_leaving

    def is_plain(self, now_s: float) -> bool:
        """Returns whether nothing about it matters to the next attempt."""
        is_good = self.is_usable and self.is_ready and self.is_known
        return is_good and now_s >= self.avoided_until_s

    def replace(self) -> None:
        """Makes it another unit in the same place, with new hosts."""
        self.is_up, self.is_leaving, self.is_ready, self.is_known = True, False, False, False


@dataclass(frozen=True)
class Hit:
    """A fault of the running attempt."""

    kind: FaultKind
    process: int
    at_s: float


class Members(Sequence[Member]):
    """The members of a gang, made when they are asked for: there may be thousands."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.units = units
        self._hosts = units[0].hosts

    def __len__(self) -> int:
        return len(self.units) * self._hosts

    def __getitem__(self, process: int) -> Member:  # pyright: ignore[reportIncompatibleMethodOverride] - no slices
        number, worker = divmod(process, self._hosts)
        unit = self.units[number]
        group, worker = ("", unit.number) if self._hosts == 1 else (str(unit.number), worker)
        return Member(None, Host(group, worker))


class StubHosts:
    """Stands for `launcher.gang.host_pool.HostPool`, with hosts that live by a virtual clock."""

    def __init__(
        self,
        launch: LaunchSpec,
        clock: VirtualClock,
        timings: Timings,
        faults: Sequence[Fault],
        start: Callable[["StubHosts", LaunchSpec, Sequence[Unit]], "StubGang"],
    ) -> None:
        """Creates hosts that are all up. `start` makes a gang of some of them."""
        self.clock, self.timings = clock, timings
        self.hit: Hit | None = None
        """The fault that has hit the running attempt; None before one has."""
        self.listener = Listener()
        self.has_started = self.has_standby = False
        """Whether a program has started on the hosts, and whether processes stand by there."""
        self.full_size = launch.plan.world.processes
        """Number of hosts of the run when none is lost."""
        world = launch.provisioned_world
        is_sliced = world.platform == "tpu" or world.slices > 1
        self.hosts_per_unit = world.hosts_per_slice if is_sliced else 1
        self.units = [
            Unit(number, self.hosts_per_unit)
            for number in range(world.processes // self.hosts_per_unit)
        ]
        self._usable = len(self.units)
        self._odd = set(self.units)
        """All units that are not plain, and few others: only these have to be looked at."""
        self._spares = launch.cluster.spares
        self._start = start
        self._members: list[Unit] = []
        """The units of the last gang, by number."""
        self._idle = set(self.units)
        """The other units."""
        self._gang: StubGang | None = None
        self._hangs = [fault for fault in faults if fault.kind is FaultKind.HANG]
        for fault in faults:
            clock.at(fault.at_s, lambda fault=fault: self._strike(fault))

    @property
    def current(self) -> "StubGang | None":
        """The gang of the last attempt, if the next one may have it too."""
        return self._gang

    @property
    def lacks_hosts(self) -> bool:
        """Whether the run has fewer hosts than it should have."""
        return self._gang is not None and self._gang.size < self.full_size

    def next_hang(self) -> Fault | None:
        """Returns the next hang from now on."""
        while self._hangs and self._hangs[0].at_s < self.clock.now_s:
            del self._hangs[0]
        return self._hangs[0] if self._hangs else None

    def watched(self, launch: LaunchSpec) -> Collection[int]:
        """Returns the processes of an attempt whose events the detectors see.

        They are two that are healthy, or more likely so, and the one that hangs next.
        """
        size = launch.plan.world.processes
        hang = self.next_hang()
        return {*range(min(size, SHOWN_PROCESSES)), *([hang.host(size)] if hang else [])}

    def gang(self, launch: LaunchSpec) -> "StubGang":
        """Returns the hosts of an attempt, after the time in which their agents start.

        Raises HostError when they are too few, LostError when one is lost meanwhile.
        """
        size = launch.plan.world.processes
        if self._gang is not None and self._gang.size == size:
            return self._gang
        self._members = self.choose(size // self.hosts_per_unit)
        if not all(unit.is_ready for unit in self._odd_members()):
            self.clock.sleep(self.timings.agent_start_s)
        self.raise_if_lost()
        for unit in self._odd_members():
            unit.is_ready = True
        self._gang = self._start(self, launch, self._members)
        return self._gang

    def choose(self, count: int) -> list[Unit]:
        """Returns the units to take, in the order of processes, as `host_selection.choose` does.

        Raises HostError when they are too few.
        """
        now_s = self.clock.now_s

        def is_avoided(unit: Unit) -> bool:
            return now_s < unit.avoided_until_s

        odd = self._odd_members()
        left = {u for u in odd if not u.is_usable or not u.is_ready or is_avoided(u)}
        kept = [one for one in self._members if one not in left][:count] if left else self._members
        if len(kept) != count:
            others = [one for one in {*self._idle, *left} if one.is_usable]
            others.sort(key=lambda unit: (is_avoided(unit), not unit.is_ready, unit.number))
            kept = [*kept[:count], *others[: max(0, count - len(kept))]]
            kept.sort(key=lambda unit: unit.number)
        if len(kept) < count:
            raise HostError(f"{len(kept)} of {count} hosts or slices are alive")
        self._idle = {*self._idle, *self._members}.difference(kept)
        return kept

    def raise_if_lost(self) -> None:
        """Raises LostError when a host of the chosen ones is gone."""
        for unit in self._odd_members():
            if not unit.is_up:
                process = self._first_process(unit)
                raise LostError(f"{host_name(process)} was lost", [process])

    def exclude(self, process: int) -> None:
        """Lets the next gang have another unit in place of that of `process`, if one is idle."""
        self._avoid(self._members[process // self.hosts_per_unit])

    def ban(self, processes: Collection[int]) -> None:
        """Ends all agents; no host of a rehearsal computes wrong."""
        self.dismiss(processes)

    def unknown(self, gang: object) -> list[int]:
        """Returns the first process of each unit whose hosts were not checked yet."""
        del gang
        return [self._first_process(unit) for unit in self._odd_members() if not unit.is_known]

    def known(self, gang: object) -> dict[int, CheckedEvent]:
        del gang
        return {}

    def know(self, gang: object, reports: Mapping[int, CheckedEvent]) -> None:
        del gang, reports
        for unit in self._odd_members():
            unit.is_known = True
        self._odd = {unit for unit in self._odd if not unit.is_plain(self.clock.now_s)}

    def regroup(self, outcome: GangResult | None) -> None:
        """Lets the next attempt have other hosts in place of the lost ones."""
        for process in outcome.lost_hosts if outcome is not None else ():
            self._avoid(self._members[process // self.hosts_per_unit])
        self._gang = None

    def dismiss(self, suspects: Collection[int] = (), lost_hosts: Collection[int] = ()) -> None:
        """Ends all agents: those of the next attempt start again."""
        for process in {*suspects, *lost_hosts} if self._members else ():
            self._avoid(self._members[process // self.hosts_per_unit])
        for unit in self._members:
            unit.is_ready = False
        self._odd.update(self._members)
        self._gang = None

    def available_hosts(self, world: World) -> int:
        """Returns the number of hosts for an attempt now; a unit counts only if it is whole."""
        del world
        return self._usable * self.hosts_per_unit

    def keep_spares(self, launch: LaunchSpec) -> None:
        """Does nothing: a unit that comes back becomes ready by itself, see `_come_back`."""

    def give_up_hosts(self) -> None:
        """Does nothing: no queue asks a rehearsed run for hosts."""

    def keep_agents(self) -> None: ...

    def check_head(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def _odd_members(self) -> list[Unit]:
        members = (unit for unit in self._odd if unit not in self._idle)
        return sorted(members, key=lambda unit: unit.number)

    def _first_process(self, unit: Unit) -> int:
        """Returns the first process on a unit of the last gang."""
        place = bisect_left(self._members, unit.number, key=lambda one: one.number)
        return place * self.hosts_per_unit

    def _avoid(self, unit: Unit) -> None:
        self._odd.add(unit)
        unit.avoided_until_s = self.clock.now_s + AVOIDED_S

    def _strike(self, fault: Fault) -> None:
        if fault.kind in (FaultKind.PROCESS, FaultKind.HANG):
            if self._gang is not None and self._gang.is_running:
                self._hit(fault.kind, fault.host(self._gang.size))
            return
        unit = self.units[fault.host(len(self.units))]
        if not unit.is_usable:
            return
        if fault.kind is FaultKind.HOST:
            self._lose(unit)
            return
        self._set_usable(unit, is_leaving=True)
        self.clock.at(self.clock.now_s + self.timings.notice_s, lambda: self._lose(unit))
        process = self._process_of(unit)
        if process is not None:
            notice = PreemptionNoticeEvent(time=self.clock.now_s, process=process)
            self.listener.on_event(notice)

    def _lose(self, unit: Unit) -> None:
        process = self._process_of(unit)
        self._set_usable(unit, is_up=False)
        unit.is_ready = False
        replacement_s = self.timings.replacement_s
        if replacement_s is not None:
            self.clock.at(self.clock.now_s + replacement_s, lambda: self._come_back(unit))
        if process is not None:
            self._hit(FaultKind.HOST, process)

    def _come_back(self, unit: Unit) -> None:
        unit.replace()
        self._usable += 1
        if self.lacks_hosts:
            self.clock.at(self.clock.now_s + HOSTS_CHECK_S, lambda: None)
        if self._spares:
            ready_s = self.timings.agent_start_s + self.timings.check_s
            self.clock.at(self.clock.now_s + ready_s, lambda: self._be_ready(unit))

    def _be_ready(self, unit: Unit) -> None:
        unit.is_ready = unit.is_known = unit.is_up

    def _set_usable(
        self, unit: Unit, *, is_up: bool | None = None, is_leaving: bool | None = None
    ) -> None:
        self._odd.add(unit)
        before = unit.is_usable
        unit.is_up = unit.is_up if is_up is None else is_up
        unit.is_leaving = unit.is_leaving if is_leaving is None else is_leaving
        self._usable += unit.is_usable - before

    def _process_of(self, unit: Unit) -> int | None:
        """Returns the first process of a unit in the running attempt; None when it has none."""
        if self._gang is None or not self._gang.is_running or unit in self._idle:
            return None
        return self._first_process(unit)

    def _hit(self, kind: FaultKind, process: int) -> None:
        if self.hit is None:
            self.hit = Hit(kind, process, self.clock.now_s)


class StubGang(ABC):
    """Stands for `launcher.gang.gang.Gang`; see `attempt.py` for what its programs do."""

    is_running = False
    """Whether its programs run."""

    def __init__(self, units: Sequence[Unit]) -> None:
        self.members = Members(units)

    @property
    def size(self) -> int:
        """The number of hosts."""
        return len(self.members)

    @abstractmethod
    def run(
        self,
        program: Program,
        coordinator_port: int | None = None,
        monitor: GangMonitor | None = None,
    ) -> GangResult:
        """Runs the programs until the attempt ends."""

    @abstractmethod
    def run_preflight(self, platform: str) -> dict[int, Seen]:
        """Returns what is wrong with the hosts."""

    @abstractmethod
    def check(
        self, program: Program, known: Mapping[int, CheckedEvent] | None = None
    ) -> dict[int, CheckedEvent]:
        """Checks the hosts."""
