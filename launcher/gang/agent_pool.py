"""The agents of a run on its reserved hosts, kept from one gang to the next while they answer."""

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from launcher.cluster.schema import with_spares
from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.gang.agent import LEASE_S
from launcher.gang.agent_calls import end_agents
from launcher.gang.borrowed_agents import BorrowedAgents
from launcher.gang.environment_check import check_equipment
from launcher.gang.host_selection import Host, choose, usable_hosts
from launcher.gang.reservation import Reservation, Seat, SeatKey, request, reserve
from launcher.gang.run_dir_sync import not_sharing
from launcher.gang.spare_start import SpareStart
from launcher.gang.spawn import AgentStart, Patience, start_agents
from launcher.providers.ray import logs
from launcher.providers.ray.host_cluster import HostCluster
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import WarningEvent

RESERVE_TIMEOUT_S = 20.0
"""Seconds to reserve the hosts. Providers return hosts that are up, so a host that is missing or
busy now has a reason."""
ANSWER_TIMEOUT_S = 2.0
"""Seconds for an agent of an earlier gang to show that it is still there."""
COMING_TIMEOUT_S, POLL_INTERVAL_S = 5.0, 0.05


@dataclass(frozen=True)
class Member:
    """The agent of a process of a gang, and its host."""

    agent: Any
    host: Host
    shares_run_dir: bool = True
    """Whether the host sees the folder of the run."""
    local: int = 0
    """The number of the process among those of the host."""

    @property
    def key(self) -> SeatKey:
        """The seat of the agent."""
        return self.host.node_id, self.local


class AgentPool:
    """The seats that a run holds on its hosts, and one agent in each that it uses."""

    def __init__(
        self,
        hosts: HostCluster,
        run_dir: Path,
        listener: Listener,
        reserve_timeout_s: float = RESERVE_TIMEOUT_S,
        patience: Patience | None = None,
        waiting: BorrowedAgents | None = None,
    ) -> None:
        """Creates a pool without agents on `hosts`, to which this process is connected.

        `waiting`: agents that are used before others are started.
        """
        self._hosts, self._run_dir, self._listener = hosts, run_dir, listener
        self._reserve_timeout_s = reserve_timeout_s
        self._patience, self._waiting = patience or Patience(), waiting
        self._reservations: list[Reservation] = []
        self._seats: dict[SeatKey, Seat] = {}
        self._members: dict[SeatKey, Member] = {}
        self._spares: set[str] = set()
        """The nodes of those members that are spares."""
        self._coming: SpareStart | None = None
        self._called_at = 0.0

    @property
    def nodes(self) -> frozenset[str]:
        """The ids of the nodes that the run holds."""
        return frozenset(seat.host.node_id for seat in self._seats.values())

    def members(self, world: World, spares: int = 0) -> tuple[list[Member], list[Member]]:
        """Returns an agent for each process of the world, in their order; and those of the spares.

        Reserves hosts and starts agents as far as they are missing, and ends those that the world
        does not need. There are fewer spares than required when no more hosts are idle. Raises
        HostError when hosts are missing or busy, or Ray is stuck; Ray's logs are then kept in the
        run's folder.
        """
        with logs.keeping(self._hosts.folder, self._run_dir):
            self._await_coming(world)
            self._listener.on_status("reserving the hosts")
            chosen = self._reserve(world)
            chosen += self._reserve_spares(world, chosen, spares)
            seats = self._seats_on(chosen)
            self._end_agents_except({host.node_id for host in chosen})
            missing = {
                number: seat for number, seat in enumerate(seats) if seat.key not in self._members
            }
            if missing:
                self._start_agents(missing)
        members = [self._members[seat.key] for seat in seats]
        spare_members = members[world.processes :]
        self._spares = {member.host.node_id for member in spare_members}
        return members[: world.processes], spare_members

    def new_spares(self, world: World, spares: int) -> list[Member]:
        """Returns spares that have become ready, once; starts missing ones without waiting.

        To be called now and then while the world's members run a program.
        """
        coming = self._coming
        if coming is None:
            self._coming = self._request_spares(world, spares)
            return []
        try:
            agents = coming.poll()
            if agents is None:
                return []
            members = self._join(coming.seats, agents)
        except HostError as error:
            self._warn(f"a spare host cannot be used: {error}")
            self._hosts.deprioritize([seat.host.place for seat in coming.seats.values()])
            self._end_coming()
            return []
        self._coming = None
        if coming.reservation is not None:
            self._add(coming.reservation)
        self._spares |= {member.host.node_id for member in members}
        return members

    def drop(self, members: Collection[Member]) -> None:
        """Ends agents that do not answer any more, without waiting for them."""
        import ray

        for member in members:
            if self._members.pop(member.key, None) is not None:
                ray.kill(member.agent)

    def keep_alive(self) -> None:
        """Keeps agents that no program uses from ending themselves; to be called often."""
        now = time.monotonic()
        if now - self._called_at >= LEASE_S / 4:
            self._called_at = now
            for member in self._members.values():
                member.agent.address.remote()

    def close(self) -> None:
        """Ends all agents with their programs, and releases the hosts."""
        self._hosts.leave(self._release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _release(self) -> None:
        self._end_coming()
        end_agents([member.agent for member in self._members.values()])
        self._members, self._seats = {}, {}
        while self._reservations:
            self._reservations.pop().release()

    def _reserve(self, world: World) -> list[Host]:
        chosen, added = reserve(world, self._hosts, self._reserve_timeout_s, held=self.nodes)
        if added is not None:
            try:
                self._check(added, chosen)
            except BaseException:
                added.release()
                raise
            self._add(added)
        return chosen

    def _add(self, added: Reservation) -> None:
        self._reservations.append(added)
        self._seats |= {seat.key: seat for seat in added.seats}

    def _seats_on(self, hosts: Sequence[Host]) -> list[Seat]:
        """Returns the seats on hosts that the run holds, host by host."""
        order = {host.node_id: number for number, host in enumerate(hosts)}
        seats = [seat for seat in self._seats.values() if seat.host.node_id in order]
        return sorted(seats, key=lambda seat: (order[seat.host.node_id], seat.local))

    def _reserve_spares(self, world: World, chosen: Sequence[Host], spares: int) -> list[Host]:
        """Reserves spare hosts, or as many as are idle, and returns them."""
        taken = {host.node_id for host in chosen}
        for number in range(spares, 0, -1):
            larger = with_spares(world, number)
            if self._choose(larger) is not None:
                return [host for host in self._reserve(larger) if host.node_id not in taken]
        return []

    def _request_spares(self, world: World, spares: int) -> SpareStart | None:
        """Starts as many agents on spare hosts as are missing, if hosts for them are idle."""
        nodes = {host.node_id for host in usable_hosts(world, self._hosts)}
        lost = self._spares - nodes
        self.drop([one for one in self._members.values() if one.host.node_id in lost])
        in_use = {one.host.node_id for one in self._members.values()}
        self._spares &= in_use
        for number in range(spares, 0, -1):
            larger = with_spares(world, number)
            if larger.hosts - world.hosts <= len(self._spares):
                return None
            if (chosen := self._choose(larger)) is not None:
                new = [host for host in chosen if host.node_id not in in_use]
                return self._start_spares(larger, new)
        return None

    def _choose(self, world: World) -> list[Host] | None:
        """Returns a world's hosts, without reserving those that are not held; None if too few."""
        alive = usable_hosts(world, self._hosts)
        avoided = self._hosts.avoided
        return choose(alive, world.slices, world.hosts_per_slice, avoided, self.nodes)[0]

    def _start_spares(self, world: World, hosts: Sequence[Host]) -> SpareStart:
        held = self._seats_on(hosts)
        added = [host for host in hosts if host.node_id not in self.nodes]
        requested = request(world, self._hosts, added, is_whole=False) if added else None
        return SpareStart(dict(enumerate(held)), requested, self._agent_start)

    def _agent_start(self, seats: Mapping[int, Seat]) -> AgentStart:
        return AgentStart(seats, self._hosts, self._warn, self._patience, self._python)

    def _await_coming(self, world: World) -> None:
        """Waits a moment for spares that are starting: the world may need them."""
        deadline = time.monotonic() + COMING_TIMEOUT_S
        while self._coming is not None and time.monotonic() < deadline:
            self.new_spares(world, 0)
            time.sleep(POLL_INTERVAL_S)
        self._end_coming()

    def _end_coming(self) -> None:
        if self._coming is not None:
            self._coming.end()
            self._coming = None

    def _check(self, added: Reservation, chosen: Sequence[Host]) -> None:
        """Raises HostError when hosts of a cluster that is not Slipway's own lack something."""
        if self._hosts.is_external:
            self._listener.on_status("checking code and Python on every host")
            check_equipment(
                {chosen.index(seat.host): seat for seat in added.seats if seat.local == 0}
            )

    def _end_agents_except(self, nodes: Collection[str]) -> None:
        """Ends the agents on other nodes, and those that do not answer."""
        import ray

        unused = [m for m in self._members.values() if m.host.node_id not in nodes]
        end_agents([member.agent for member in unused])
        self.drop(unused)
        calls = {member.agent.address.remote(): member for member in self._members.values()}
        _, late = ray.wait(list(calls), num_returns=len(calls), timeout=ANSWER_TIMEOUT_S)
        failed = [call for call in calls if call in late or not _has_answered(call)]
        self.drop([calls[call] for call in failed])

    def _start_agents(self, seats: Mapping[int, Seat]) -> None:
        """Takes agents that wait for a run, and starts the others."""
        # One agent waits on each host.
        nodes = {n: seat.host.node_id for n, seat in seats.items() if seat.local == 0}
        waiting = self._waiting.take(nodes.values(), self._hosts) if self._waiting else {}
        agents = {number: waiting[node] for number, node in nodes.items() if node in waiting}
        if rest := {number: seat for number, seat in seats.items() if number not in agents}:
            on_status, patience = self._listener.on_status, self._patience
            started = start_agents(rest, self._hosts, on_status, self._warn, patience, self._python)
            agents |= started
        self._join(seats, agents)

    def _join(self, seats: Mapping[int, Seat], agents: Mapping[int, Any]) -> list[Member]:
        """Makes members of started agents, and returns them."""
        apart = [] if self._hosts.is_on_this_machine else not_sharing(agents, self._run_dir)
        members = [
            Member(agents[number], seat.host, number not in apart, seat.local)
            for number, seat in seats.items()
        ]
        self._members |= {member.key: member for member in members}
        return members

    @property
    def _python(self) -> str | None:
        """The interpreter of the agents; None for that of the hosts' Ray."""
        return sys.executable if self._hosts.is_external else None

    def _warn(self, text: str) -> None:
        self._listener.on_event(WarningEvent(category="agent", message=text))


def _has_answered(call: Any) -> bool:
    import ray
    from ray.exceptions import RayError

    try:
        ray.get(call)
    except RayError:
        return False
    return True
