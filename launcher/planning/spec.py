"""One attempt, ready to start: what all kinds of job have in common."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.cluster.schema import Cluster, ClusterRef
from launcher.core.environment import INSIDE
from launcher.planning import job_secrets
from trainer.contract.config.job import BaseJob, Job
from trainer.contract.planning.plan import BasePlan, World

MEGASCALE_PORT = 8081
"""Where libtpu's slices find each other on the first host; a pod's network lets it through."""


@dataclass(frozen=True, kw_only=True)
class AttemptInfo:
    """One attempt, as its run's folder tells of it."""

    job: BaseJob
    cluster_name: str
    plan: BasePlan
    run_dir: Path
    attempt: int = 1

    @property
    def steps(self) -> int | None:
        """How many steps the run has; None: its program alone knows."""
        return self.job.steps if isinstance(self.job, Job) else None

    @property
    def tells_events(self) -> bool:
        """Whether its program is known to send the contract's events."""
        return isinstance(self.job, Job)

    @property
    def saves(self) -> bool:
        """Whether it is known to save checkpoints."""
        return isinstance(self.job, Job) and self.job.checkpoint is not None


@dataclass(frozen=True, kw_only=True)
class LaunchSpec(AttemptInfo, ABC):
    """One attempt, ready to start."""

    cluster: Cluster
    cluster_ref: ClusterRef
    """What the cluster was asked for with."""
    storage_problem: str = ""
    """Why the hosts would not find each other's checkpoints; "": they do."""

    @property
    def is_remote(self) -> bool:
        """Whether its hosts are others than this machine: the first of them sees to the run."""
        return self.cluster.is_elsewhere and not self.plan.world.simulated

    @property
    def is_queued(self) -> bool:
        """Whether it is to be a job in Slurm's queue; inside of that job it is none."""
        is_slurms = self.cluster.provider.kind == "slurm" and not self.plan.world.simulated
        return is_slurms and INSIDE not in os.environ

    @abstractmethod
    def command(self, process: int) -> list[str]:
        """What that process's host runs."""

    @abstractmethod
    def check_command(self, process: int) -> list[str] | None:
        """What looks at that process's host before the start; None: nothing does."""

    @abstractmethod
    def plan_on(self, world: World) -> BasePlan | None:
        """The same job on fewer hosts; None: it does not fit."""

    def fallback_specs(self) -> list["LaunchSpec"]:
        """The same job on what an elastic cluster may shrink to; what it fits on, ascending."""
        if self.cluster_ref.simulate_hosts is not None:
            return []
        worlds = self.cluster.smaller_worlds(self.cluster_ref.simulated)
        plans = [self.plan_on(world) for world in worlds]
        return [replace(self, plan=plan) for plan in plans if plan]

    @property
    @abstractmethod
    def grace_s(self) -> float:
        """How long the program may take to save and end when it is asked to stop."""

    @property
    def corpus_sha256(self) -> str | None:
        """Of the data that all hosts must see; None: not known here."""
        return None

    @property
    def state_bytes(self) -> int:
        """What is known to be held on all devices together."""
        return 0

    @property
    def checkpoint_bytes(self) -> int:
        """Of one checkpoint, as far as it is known; 0: none is saved."""
        return 0

    def environment(self, process: int) -> dict[str, str]:
        """Variables of one process; the agent adds the coordinator's address and the event pipe."""
        world = self.plan.world
        environment = {
            **job_secrets.values(self.job),
            "SLIPWAY_NUM_PROCESSES": str(world.processes),
            "SLIPWAY_PROCESS_ID": str(process),
            "SLIPWAY_RUN_DIR": str(self.run_dir),
            "SLIPWAY_ATTEMPT": str(self.attempt),
            "JAX_PLATFORMS": "cpu" if world.on_cpu else _jax_platform(world.platform),
        }
        if world.on_cpu:
            devices = f"--xla_force_host_platform_device_count={world.devices_per_host}"
            environment["XLA_FLAGS"] = f"{self._xla_flags} {devices}".strip()
        elif world.platform == "tpu" and world.slices > 1:
            environment["MEGASCALE_NUM_SLICES"] = str(world.slices)
            environment["MEGASCALE_SLICE_ID"] = str(process // world.hosts_per_slice)
            environment["MEGASCALE_PORT"] = str(MEGASCALE_PORT)
        return environment

    @property
    def _xla_flags(self) -> str:
        """Of whoever launches."""
        return os.environ.get("XLA_FLAGS", "")


def _jax_platform(platform: str) -> str:
    """The CPU stays visible beside the chips: for what is computed on the host."""
    return {"tpu": "tpu,cpu", "gpu": "cuda,cpu"}[platform]
