"""A run's hosts and the agents on them, kept from one attempt to the next while they are alive."""

import time
from collections.abc import Collection
from contextlib import AbstractContextManager, ExitStack
from typing import Self

from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.gang.connect import assembled, connected
from launcher.gang.early_standby import EarlyStandby, early_standby
from launcher.gang.gang import Gang
from launcher.gang.host_selection import places, usable
from launcher.planning.spec import LaunchSpec
from launcher.providers.ray.host_cluster import HostCluster
from launcher.providers.registry import provider_for
from trainer.contract.planning.plan import World


class HostPool:
    """The hosts of a run: acquired when first needed, released on every exit from the context."""

    def __init__(self, listener: Listener) -> None:
        self._listener = listener
        self._hosts: HostCluster | None = None
        self._gang: Gang | None = None
        self._known: frozenset[str] = frozenset()
        """Nodes that have been checked and are alike."""
        self._held_nodes: frozenset[str] = frozenset()
        """Nodes of the last gang: Ray takes a moment to register their release."""
        self._early: EarlyStandby | None = None
        self._held, self._assembly = ExitStack(), ExitStack()

    def gang(self, launch: LaunchSpec) -> Gang:
        """Returns a gang of agents on the hosts of an attempt.

        Raises HostError when hosts are too few for it, or none can be acquired.
        """
        if self._gang is not None and self._gang.size == launch.plan.world.processes:
            return self._gang
        self.dismiss()
        if self._hosts is None:
            self._hosts = self._get_hosts(launch)
        self._held_nodes = frozenset()
        self._gang = self._assembly.enter_context(self._assemble(launch, self._hosts))
        self._held_nodes = self._gang.nodes
        return self._gang

    def is_known(self, gang: Gang) -> bool:
        """Returns whether every host of `gang` was checked: new agents may run on known hosts."""
        return gang.nodes <= self._known

    def know(self, gang: Gang) -> None:
        self._known |= gang.nodes

    def dismiss(self, suspects: Collection[int] = ()) -> None:
        """Ends the agents, not the hosts: a host is lost, or other hosts are needed.

        `suspects`: processes whose hosts are taken again only when no other hosts are available.
        """
        if self._gang is not None and self._hosts is not None:
            self._hosts.quarantine(self._gang.silent_places)
            self._hosts.deprioritize(self._gang.silent_places)
            self._hosts.deprioritize(self._gang.places_of(suspects))
        self._gang = None
        self._assembly.close()
        self._assembly = ExitStack()

    def available_hosts(self, world: World) -> int:
        """Returns the number of hosts for an attempt now; replaces lost ones as far as possible.

        Raises HostError when the cluster itself is gone.
        """
        if self._hosts is None:
            return world.processes
        self.check_head()
        self._hosts.replace_lost(time.monotonic())
        return usable(
            world, self._hosts.usable_slots(world, places(world, self._hosts, self._held_nodes))
        )

    def check_head(self) -> None:
        """Raises HostError when the head of the cluster has ended."""
        if self._hosts is not None and self._hosts.head_is_down:
            raise HostError("the head of the Ray cluster has ended: all its hosts are lost with it")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with self._held, self._assembly:
            pass

    def _get_hosts(self, launch: LaunchSpec) -> HostCluster:
        """Acquires the hosts of the launch's cluster, and connects to them as their driver."""
        provider = provider_for(launch.cluster, launch.plan.world.simulated)
        environment = provider.host_environment()
        if environment is not None:
            early = early_standby(launch, environment, provider.standby_pool(launch))
            self._early = self._held.enter_context(early)
        hosts = self._held.enter_context(provider.allocate(launch, self._listener))
        self._held.enter_context(connected(hosts, launch.run_dir, self._listener))
        return hosts

    def _assemble(self, launch: LaunchSpec, hosts: HostCluster) -> AbstractContextManager[Gang]:
        return assembled(
            hosts, launch.plan.world, launch.run_dir, self._listener, early=self._early
        )
