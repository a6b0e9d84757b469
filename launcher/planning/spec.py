"""One attempt, ready to start: the part that all kinds of jobs have in common."""

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.cluster.schema import Cluster, ClusterRef, with_spares
from launcher.planning import job_secrets
from trainer.contract.config.job import BaseJob, Job
from trainer.contract.estimates.host_memory import HostMemory
from trainer.contract.estimates.roofline import Bounds
from trainer.contract.planning.plan import BasePlan, World
from trainer.contract.protocol.environment import (
    ATTEMPT,
    JAX_LOCAL_DEVICE_IDS,
    JAX_PLATFORMS,
    MEGASCALE_NUM_SLICES,
    MEGASCALE_PORT,
    MEGASCALE_SLICE_ID,
    NUM_PROCESSES,
    PROCESS_ID,
    PROCESSES_PER_HOST,
    RUN_DIR,
    XLA_FLAGS,
)

TRAFFIC_PORT = 8081
"""Port on the first host where libtpu connects slices; a pod's network permits it. Ray has the same
(DEFAULT_MEGASCALE_PORT in ray/_private/accelerators/tpu.py)."""


@dataclass(frozen=True, kw_only=True)
class AttemptInfo:
    """One attempt, as recorded in its run's folder."""

    job: BaseJob
    cluster_name: str
    plan: BasePlan
    run_dir: Path
    attempt: int = 1

    @property
    def steps(self) -> int | None:
        """Number of steps of the run; None for a user's program, whose steps are unknown."""
        return self.job.last_step if isinstance(self.job, Job) else None

    @property
    def sends_events(self) -> bool:
        """Whether the program is known to send the contract's events."""
        return isinstance(self.job, Job)

    @property
    def saves(self) -> bool:
        """Whether the program is known to save checkpoints."""
        return isinstance(self.job, Job) and self.job.checkpoint is not None


@dataclass(frozen=True, kw_only=True)
class LaunchSpec(AttemptInfo, ABC):
    """One attempt, ready to start."""

    cluster: Cluster
    cluster_ref: ClusterRef
    """Cluster reference of the command."""
    storage_problem: str = ""
    """Why the hosts would not find each other's checkpoints; "" when they do."""
    host_order: tuple[int, ...] = ()
    """The host of each process, by its usual process; () for the usual order."""
    host_limit: int | None = None
    """Most hosts that the run may use at first; None for all. A queue may change it later."""
    hot: bool = True
    """Whether the run brings the programs to its hosts that `launch plan` has kept for it."""

    @property
    def is_remote(self) -> bool:
        """Whether the hosts are remote, so that the first of them drives the run."""
        return self.cluster.is_elsewhere and not self.plan.world.simulated

    @property
    def provisioned_world(self) -> World:
        """What the provider gives to the run: the hosts of the plan, and the spares."""
        return with_spares(self.plan.world, self.cluster.spares)

    @abstractmethod
    def command(self, process: int) -> list[str]:
        """Returns the command that the process's host runs."""

    @abstractmethod
    def standby_command(self, process: int, *, check: bool) -> list[str] | None:
        """Returns the command of a standby process; None when the program has none.

        It waits for its start, see `trainer.contract.protocol.start`. With `check`, it first checks
        its host and sends one `checked` event.
        """

    @abstractmethod
    def plan_on(self, world: World) -> BasePlan | None:
        """Returns the plan of the same job on fewer hosts, or None when it does not fit."""

    def fallback_specs(self) -> list["LaunchSpec"]:
        """Returns the same job on each smaller world of an elastic cluster that it fits.

        The smallest world is first.
        """
        plans = [self.plan_on(world) for world in self.smaller_worlds]
        return [replace(self, plan=plan) for plan in plans if plan]

    @property
    def smaller_worlds(self) -> list[World]:
        """The worlds that an elastic cluster may shrink to, smallest first."""
        if self.cluster_ref.simulate_hosts is not None:
            return []
        return list(self.cluster.smaller_worlds(self.cluster_ref.simulated))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Numbers of hosts that the job fits on, ascending."""
        return tuple(one.plan.world.hosts for one in (*self.fallback_specs(), self))

    @property
    def within_limit(self) -> "LaunchSpec":
        """The same attempt on the most hosts that `host_limit` allows, or else on the fewest."""
        if self.host_limit is None or self.host_limit >= self.plan.world.hosts:
            return self
        smaller = self.fallback_specs()
        allowed = [one for one in smaller if one.plan.world.hosts <= self.host_limit]
        return (allowed or smaller[:1] or [self])[-1]

    @property
    @abstractmethod
    def grace_s(self) -> float:
        """Seconds that the program may take to save and end after a stop request."""

    @property
    @abstractmethod
    def failure_grace_s(self) -> float:
        """Seconds that the program may take to end after it failed on another host.

        It has as long when the agent of its host is gone.
        """

    @property
    def corpus_sha256(self) -> str | None:
        """Digest of the data that all hosts must see; None when unknown on this machine."""
        return None

    @property
    def checkpoint_bytes(self) -> int:
        """Bytes of one checkpoint, as far as known; 0 when none is saved."""
        return 0

    @property
    def in_memory_bytes(self) -> int:
        """Bytes of in-memory checkpoints on each host; 0 when the job has none."""
        return 0

    @property
    def standby_bytes(self) -> int:
        """Bytes of the standby processes on each host beside the programs; 0 without one."""
        return 0

    @property
    def host_memory(self) -> HostMemory | None:
        """Forecast of the memory of each host; None for a program that is not known."""
        return None

    @property
    def bounds(self) -> Bounds | None:
        """Bounds of one step's time; None without a model or the specifications of its devices."""
        return None

    def environment(self, process: int) -> dict[str, str]:
        """Returns the variables of one process.

        The agent adds the coordinator's address and the event pipe.
        """
        world = self.plan.world
        variables = {
            **job_secrets.host_values(self.job),
            NUM_PROCESSES: str(world.processes),
            PROCESS_ID: str(process),
            RUN_DIR: str(self.run_dir),
            ATTEMPT: str(self.attempt),
            **backend_environment(world, self._xla_flags),
        }
        if world.processes_per_host > 1:
            variables[PROCESSES_PER_HOST] = str(world.processes_per_host)
            if not world.on_cpu:
                variables[JAX_LOCAL_DEVICE_IDS] = _local_devices(world, process)
        if world.platform == "tpu" and not world.on_cpu and world.slices > 1:
            variables[MEGASCALE_NUM_SLICES] = str(world.slices)
            variables[MEGASCALE_SLICE_ID] = str(process // world.hosts_per_slice)
            variables[MEGASCALE_PORT] = str(TRAFFIC_PORT)
        return variables

    @property
    def _xla_flags(self) -> str:
        """XLA_FLAGS of the job or of the launching user."""
        return user_xla_flags()


def user_xla_flags() -> str:
    """Returns XLA_FLAGS of the launching user."""
    return os.environ.get(XLA_FLAGS, "")


def backend_environment(world: World, xla_flags: str) -> dict[str, str]:
    """Returns the variables that choose JAX's devices. `xla_flags`: further XLA_FLAGS."""
    if not world.on_cpu:
        return {JAX_PLATFORMS: _jax_platform(world.platform)}
    devices = f"--xla_force_host_platform_device_count={world.devices_per_process}"
    return {JAX_PLATFORMS: "cpu", XLA_FLAGS: f"{xla_flags} {devices}".strip()}


def _local_devices(world: World, process: int) -> str:
    """Returns the numbers of a process's devices among those that its host's programs see.

    All processes see all GPUs of their host, so that NCCL can copy from one to the other. JAX opens
    only these: its detection of Slurm and Open MPI does the same, with one GPU for each process.
    """
    first = process % world.processes_per_host * world.devices_per_process
    return ",".join(map(str, range(first, first + world.devices_per_process)))


def _jax_platform(platform: str) -> str:
    """Returns the value of JAX_PLATFORMS. The CPU stays visible for computation on the host."""
    return {"tpu": "tpu,cpu", "gpu": "cuda,cpu"}[platform]
