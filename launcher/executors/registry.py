"""The table of executors: which one starts the runs of which kind of cluster."""

import os
from collections.abc import Callable, Mapping
from typing import Any

from launcher.cluster.schema import Attach, Cluster, Gcp, Kubernetes, Local, Slurm, Ssh
from launcher.executors.base import Executor
from launcher.executors.gcp import GcpExecutor
from launcher.executors.local import LocalExecutor
from launcher.executors.ray_jobs import RayJobsExecutor
from launcher.executors.slurm import SlurmExecutor
from launcher.executors.ssh import SshExecutor
from trainer.contract.protocol.environment import SLURM_JOB


def executor_for(cluster: Cluster, *, simulated: bool) -> Executor:
    """Returns the executor of a cluster's runs; simulated hosts are always on this machine."""
    if simulated:
        return LocalExecutor()
    return _EXECUTORS[type(cluster.provider)](cluster.provider)


def _for_attach(settings: Attach) -> Executor:
    """Returns an executor for a Ray cluster that this process joins, or submits a job to."""
    return RayJobsExecutor(settings) if settings.is_by_http else LocalExecutor()


def _for_slurm(settings: Slurm) -> Executor:
    """Returns an executor that submits a job; inside that job, this process drives the run."""
    return LocalExecutor() if SLURM_JOB in os.environ else SlurmExecutor(settings)


_EXECUTORS: Mapping[type, Callable[[Any], Executor]] = {
    Local: lambda _: LocalExecutor(),
    Kubernetes: lambda _: LocalExecutor(),
    Gcp: lambda _: GcpExecutor(),
    Ssh: SshExecutor,
    Attach: _for_attach,
    Slurm: _for_slurm,
}
