"""Standby processes that start while the hosts are provisioned, where the hosts are this machine.

Their imports take as long as the start of Ray. The agents take them over once they are up.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

from launcher.gang.monitor import GRACE_S
from launcher.gang.run_dir_sync import log_of
from launcher.host.offer import Offer
from launcher.host.process import HostProcess
from launcher.host.process_tree import ReaperError
from launcher.planning.spec import LaunchSpec

AT_MOST = 2 * len(os.sched_getaffinity(0))
"""Maximum number of processes: more would delay the start of Ray on this machine too much."""


class EarlyStandby:
    """The standby processes of a launch, by process; a context manager that ends those left."""

    def __init__(self, launch: LaunchSpec, environment: Mapping[str, str]) -> None:
        """Starts them in the environment of the hosts, before the variables of the launch."""
        self._programs: dict[int, HostProcess] = {}
        processes = launch.plan.world.processes
        for process in range(processes if processes <= AT_MOST else 0):
            command = launch.standby_command(process, check=True)
            if command is None:
                return
            whole = {**environment, **launch.environment(process)}
            log = launch.run_dir / log_of(process)
            with suppress(ReaperError):  # the agent starts one, and reports what is wrong
                self._programs[process] = HostProcess(
                    command, whole, log, Path.cwd(), GRACE_S, is_standby=True
                )

    def offer(self, process: int) -> Offer | None:
        """Returns the program of a process for its agent, or None when there is none."""
        program = self._programs.get(process)
        return program and program.offer()

    def close(self) -> None:
        """Lets go of all programs: those that were not taken over end."""
        while self._programs:
            self._programs.popitem()[1].let_go()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the programs that no agent has taken over, and waits until they are gone."""
        for program in self._programs.values():
            program.end()
