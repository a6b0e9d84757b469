"""A job's `command` on every host: any program, with all that JAX needs to find the others."""

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import trainer
from launcher.planning.spec import LaunchSpec
from trainer.contract.config.command import CommandJob
from trainer.contract.planning.plan import BasePlan, World

FOR_JAX = Path(trainer.__file__).parent / "any_program"
"""Holds a `jax_plugins` by which `jax.distributed.initialize()` learns count and rank."""


@dataclass(frozen=True, kw_only=True)
class CommandLaunch(LaunchSpec):
    """One attempt of a job that runs a program of the user's."""

    job: CommandJob

    def command(self, process: int) -> list[str]:
        """The same everywhere, as it was written: the rank is in the environment."""
        del process
        return list(self.job.command)

    def check_command(self, process: int) -> None:
        """Whether hosts are alike is the program's own business."""
        del process

    def plan_on(self, world: World) -> BasePlan:
        return BasePlan(world=world)

    @property
    def grace_s(self) -> float:
        return self.job.grace_s

    def environment(self, process: int) -> dict[str, str]:
        """The job's own variables too; a bare `python` is the one that runs this."""
        own = self.job.env
        paths = {"PATH": str(Path(sys.executable).parent), "PYTHONPATH": str(FOR_JAX)}
        in_front = {
            name: os.pathsep.join(filter(None, [own.get(name), path]))
            for name, path in paths.items()
        }
        return {**own, **super().environment(process), **in_front}

    @property
    def _xla_flags(self) -> str:
        return self.job.env.get("XLA_FLAGS", super()._xla_flags)
