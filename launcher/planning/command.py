"""A job's `command` on every host: any program, with what JAX needs to connect the processes."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

from launcher.planning.spec import LaunchSpec
from trainer.contract.config.command import CommandJob
from trainer.contract.planning.plan import BasePlan, World
from trainer.contract.protocol.environment import PLUGIN_DIR, XLA_FLAGS

FAILURE_GRACE_S = 2.0


@dataclass(frozen=True, kw_only=True)
class CommandLaunch(LaunchSpec):
    """One attempt of a job that runs a user's program."""

    job: CommandJob

    def command(self, process: int) -> list[str]:
        """Returns the command as written, the same for all hosts: the environment has the rank."""
        del process
        return list(self.job.command)

    def standby_command(self, process: int, *, check: bool) -> None:
        """Returns None: the program starts with its attempt, and comparing hosts is up to it."""
        del process, check

    def plan_on(self, world: World) -> BasePlan:
        return BasePlan(world=world)

    @property
    def grace_s(self) -> float:
        return self.job.grace_s

    @property
    def failure_grace_s(self) -> float:
        return FAILURE_GRACE_S

    def environment(self, process: int) -> dict[str, str]:
        """Returns the variables of one process, including the job's own.

        A bare `python` in the command is the interpreter that runs this code.
        """
        own = self.job.env
        paths = {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(PLUGIN_DIR)}
        in_front = {
            name: os.pathsep.join(filter(None, [own.get(name), path]))
            for name, path in paths.items()
        }
        return {**own, **super().environment(process), **in_front}

    @property
    def _xla_flags(self) -> str:
        return self.job.env.get(XLA_FLAGS, super()._xla_flags)
