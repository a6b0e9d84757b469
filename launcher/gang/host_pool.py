"""A run's hosts and the agents on them, kept from one attempt to the next while they are alive."""

import math
import time
from collections.abc import Collection, Mapping
from contextlib import ExitStack
from typing import Self

from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.core.results import GangResult
from launcher.gang.agent_pool import AgentPool
from launcher.gang.borrowed_agents import BorrowedAgents
from launcher.gang.connect import connected
from launcher.gang.early_standby import EarlyStandby, early_standby
from launcher.gang.gang import Gang
from launcher.gang.host_selection import places, usable
from launcher.planning.spec import LaunchSpec
from launcher.providers.ray.host_cluster import HostCluster
from launcher.providers.registry import provider_for
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import CheckedEvent


class HostPool:
    """The hosts of a run: acquired when first needed, released on every exit from the context."""

    def __init__(self, listener: Listener, whole: LaunchSpec) -> None:
        """Creates a pool without hosts. `whole`: the launch on all hosts that the run may get."""
        self._listener, self._whole = listener, whole
        self._hosts: HostCluster | None = None
        self._agents: AgentPool | None = None
        self._gang: Gang | None = None
        self._known: dict[str, CheckedEvent | None] = {}
        """Nodes that have been checked and are alike, with what they reported, if anything."""
        self._released: frozenset[str] = frozenset()
        """Nodes that were held before: Ray takes a moment to register their release."""
        self._early: EarlyStandby | None = None
        self._held = ExitStack()

    def gang(self, launch: LaunchSpec) -> Gang:
        """Returns a gang of agents on the hosts of an attempt.

        Raises HostError when hosts are too few for it, or none can be acquired.
        """
        world = launch.plan.world
        if self._gang is not None and self._gang.size == world.processes:
            return self._gang
        if self._agents is None:
            self._agents = self._get_agents(launch)
        self._gang = None
        members, spares = self._agents.members(world, launch.cluster.spares)
        self._released = frozenset()
        if launch.host_order:
            count = world.processes_per_host
            members = [
                members[usual * count + local]
                for usual in launch.host_order
                for local in range(count)
            ]
        self._gang = Gang(members, launch.run_dir, self._listener, self._early, spares)
        return self._gang

    @property
    def current(self) -> Gang | None:
        """The gang of the last attempt, if the next one may have it too."""
        return self._gang

    def watched(self, launch: LaunchSpec) -> Collection[int]:
        """Returns the processes of an attempt whose events arrive here: all of them."""
        return range(launch.plan.world.processes)

    def exclude(self, process: int) -> None:
        """Lets the next gang have another host in place of that of `process`, if one is idle."""
        if self._gang is not None and self._hosts is not None:
            self._hosts.deprioritize(self._gang.places_of([process]))

    def ban(self, processes: Collection[int]) -> None:
        """Never takes the hosts of some processes again.

        All agents end, and with them the checkpoints in their memory.
        """
        if self._gang is not None and self._hosts is not None:
            self._hosts.quarantine([self._gang.nodes[one] for one in processes], math.inf)
        self.dismiss(processes)

    def unknown(self, gang: Gang) -> list[int]:
        """Returns the processes of `gang` whose hosts were not checked yet.

        New agents may run on known hosts.
        """
        return [process for process, node in enumerate(gang.nodes) if node not in self._known]

    def known(self, gang: Gang) -> dict[int, CheckedEvent]:
        """Returns what the known hosts of `gang` reported: process -> its `checked` event."""
        reports = {process: self._known.get(node) for process, node in enumerate(gang.nodes)}
        return {process: report for process, report in reports.items() if report is not None}

    def know(self, gang: Gang, reports: Mapping[int, CheckedEvent]) -> None:
        """Records that all hosts of `gang` were checked, and their reports."""
        self._known |= {node: reports.get(process) for process, node in enumerate(gang.nodes)}

    def regroup(self, outcome: GangResult | None) -> None:
        """Lets the next attempt have a new gang, with other agents in place of the lost ones.

        The agents of the other processes stay, and with them the standby processes on their hosts.
        """
        if outcome is not None:
            self._drop(outcome.lost, outcome.lost_hosts)
        self._gang = None

    def give_up_hosts(self) -> None:
        """Lets the next attempt have a gang on fewer hosts, and other runs have the rest.

        A cluster that serves only this run keeps its agents, so that the next attempt is fast.
        """
        if self._hosts is not None and self._hosts.is_shared:
            self.dismiss()
        self._gang = None

    def dismiss(self, suspects: Collection[int] = (), lost_hosts: Collection[int] = ()) -> None:
        """Ends the agents, not the hosts: hosts are unfit, or agents do not answer.

        `suspects`: processes whose hosts are taken again only when no other hosts are available.
        """
        self._drop(lost_hosts, lost_hosts)
        if self._gang is not None and self._hosts is not None:
            self._hosts.deprioritize(self._gang.places_of(suspects))
        self._gang = None
        if self._agents is not None:
            self._released = self._agents.nodes
            self._agents.close()

    def available_hosts(self, world: World) -> int:
        """Returns the number of hosts for an attempt now; replaces lost ones as far as possible.

        Raises HostError when the cluster itself is gone.
        """
        if self._hosts is None:
            return world.hosts
        self.check_head()
        self._hosts.replace_lost(time.monotonic())
        ours = self._released | (self._agents.nodes if self._agents is not None else frozenset())
        return usable(world, self._hosts.usable_slots(world, places(world, self._hosts, ours)))

    def keep_spares(self, launch: LaunchSpec) -> None:
        """Replaces spares that are lost or in use, without waiting; to be called now and then."""
        if self._agents is None or self._gang is None or not launch.cluster.spares:
            return
        if self._hosts is not None:
            self._hosts.replace_lost(time.monotonic())
        world = launch.plan.world
        self._gang.add_spares(self._agents.new_spares(world, launch.cluster.spares))

    def keep_agents(self) -> None:
        """Keeps agents that no program uses from ending themselves; to be called often."""
        if self._agents is not None:
            self._agents.keep_alive()

    def check_head(self) -> None:
        """Raises HostError when the head of the cluster has ended."""
        if self._hosts is not None and self._hosts.head_is_down:
            raise HostError("the head of the Ray cluster has ended: all its hosts are lost with it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._held.close()

    def _get_agents(self, launch: LaunchSpec) -> AgentPool:
        """Acquires the hosts of the launch's cluster, and connects to them as their driver."""
        provider = provider_for(launch.cluster, launch.plan.world.simulated)
        environment = provider.host_environment()
        if environment is not None:
            early = early_standby(launch, environment, provider.standby_pool(self._whole))
            self._early = self._held.enter_context(early)
        self._hosts = self._held.enter_context(provider.allocate(self._whole, self._listener))
        self._held.enter_context(connected(self._hosts, launch.run_dir, self._listener))
        waiting = self._held.enter_context(BorrowedAgents(self._hosts.folder))
        agents = AgentPool(self._hosts, launch.run_dir, self._listener, waiting=waiting)
        return self._held.enter_context(agents)

    def _drop(self, lost: Collection[int], lost_hosts: Collection[int]) -> None:
        """Ends agents that are lost; their hosts are taken again only when no others are idle."""
        gang = self._gang
        if gang is None or self._agents is None or self._hosts is None:
            return
        gone = {*lost_hosts, *gang.silent}
        gone_nodes = {gang.nodes[process] for process in gone}
        self._hosts.quarantine(gone_nodes)
        self._hosts.deprioritize(gang.places_of({*lost, *gone}))
        self._agents.drop(
            [
                member
                for process, member in enumerate(gang.members)
                if process in lost or member.host.node_id in gone_nodes
            ]
        )
