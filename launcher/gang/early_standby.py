"""Standby processes that are there before the agents, where the hosts are this machine.

Those of a launch start while the hosts are provisioned: their imports take as long as the start of
Ray. Those of a warm cluster have been waiting for the run, and check their hosts while the launch
connects to Ray. The agents take them over once they are up.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from launcher.core.lending import Loan
from launcher.gang.agent import add, alike
from launcher.host.offer import Offer
from launcher.host.process import HostProcess
from launcher.host.process_tree import ReaperError
from launcher.host.standby_pool import AT_MOST, Offered
from launcher.planning.spec import LaunchSpec


class EarlyStandby(ABC):
    """Standby processes for agents; a context manager that ends those that no agent has taken."""

    @abstractmethod
    def offer(self, process: int) -> Offer | None:
        """Returns the program of a process for its agent, or None when there is none."""

    @abstractmethod
    def close(self) -> None:
        """Lets go of all programs: those that were not taken over end."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None: ...


def early_standby(
    launch: LaunchSpec, environment: Mapping[str, str], pool: Path | None
) -> EarlyStandby:
    """Returns the processes that wait in a warm cluster's `pool`, or new ones.

    `environment` is that of the hosts, before the variables of the launch.
    """
    if pool and launch.standby_command(0, check=True):
        waiting = StandbyOfCluster(pool)
        waiting.assign(launch)
        if waiting.offer(0):
            return waiting
        with waiting:
            pass
    return StandbyOfLaunch(launch, environment)


class StandbyOfLaunch(EarlyStandby):
    """The standby processes that this launch has started, by process."""

    def __init__(self, launch: LaunchSpec, environment: Mapping[str, str]) -> None:
        """Starts them."""
        self._programs: dict[int, HostProcess] = {}
        processes = launch.plan.world.processes
        for process in range(processes if processes <= AT_MOST else 0):
            command = launch.standby_command(process, check=True)
            if command is None:
                return
            whole = {**environment, **launch.environment(process)}
            with suppress(ReaperError):  # the agent starts one, and reports what is wrong
                self._programs[process] = HostProcess(
                    command, whole, None, Path.cwd(), launch.failure_grace_s, is_standby=True
                )

    def offer(self, process: int) -> Offer | None:
        """Returns the program of a process for its agent, or None when there is none."""
        program = self._programs.get(process)
        return program and program.offer()

    def close(self) -> None:
        """Lets go of all programs: those that were not taken over end."""
        while self._programs:
            self._programs.popitem()[1].let_go()

    def __exit__(self, *_: object) -> None:
        """Ends the programs that no agent has taken over, and waits until they are gone."""
        for program in self._programs.values():
            program.end()


class StandbyOfCluster(EarlyStandby):
    """The standby processes of a warm cluster, held until the run has ended."""

    def __init__(self, path: Path) -> None:
        """Asks the cluster's pool at the socket `path`, which may have none, or be gone."""
        self._loan = Loan(path, Offered)
        self._offers = self._loan.offer.offers if self._loan.offer else {}

    def assign(self, launch: LaunchSpec) -> None:
        """Gives each process its part of a launch, whose checks it then begins.

        Those that run something else, or wait in another environment, are offered no longer.
        """
        assigned = {
            process: _assigned(self._offers[process], launch, process)
            for process in range(launch.plan.world.processes)
            if process in self._offers
        }
        self._offers = {process: offer for process, offer in assigned.items() if offer}

    def offer(self, process: int) -> Offer | None:
        """Returns the program of a process for its agent, or None when there is none."""
        return self._offers.get(process)

    def close(self) -> None:
        """Lets go of all programs, in the pool: those that were not taken over end."""
        self._offers = {}
        self._loan.taken()

    def __exit__(self, *_: object) -> None:
        """Ends the loan: the pool starts programs for the next run."""
        self._loan.close()


def _assigned(offer: Offer, launch: LaunchSpec, process: int) -> Offer | None:
    command = launch.standby_command(process, check=True)
    environment = add(launch.environment(process), offer.environment)
    if not command or not offer.can_become(command) or not alike(offer.environment, environment):
        return None
    try:
        return offer.assign(command, environment, str(Path.cwd()))
    except OSError:  # it has ended
        return None
