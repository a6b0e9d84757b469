"""Audits of runs that another machine drives."""

from pathlib import Path

from launcher.cluster.schema import Cluster, ClusterRef
from launcher.core.errors import JobError, UsageError
from launcher.executors.handle import RunHandle
from launcher.executors.local import LocalExecutor
from launcher.executors.registry import executor_for


def fetch(handle: RunHandle) -> Path:
    """Returns the folder of a run on this machine, after copying it here if it is elsewhere.

    Raises UsageError for a run that another machine still drives, HostError when that machine does
    not answer.
    """
    try:
        return handle.fetch()
    except JobError as error:
        raise UsageError(
            f"{error}: its record is there until it ends. Audit it afterwards (launch attach "
            f"{handle.name} waits for its end), or let its hosts check each other during the run: "
            "integrity.replay_every"
        ) from None


def problem(cluster: Cluster, cluster_ref: ClusterRef) -> str:
    """Returns why an audit cannot use a cluster; "" when it can."""
    executor = executor_for(cluster, simulated=cluster_ref.simulated)
    if isinstance(executor, LocalExecutor):
        return ""
    return (
        f"--cluster {cluster_ref.name}: one of its hosts drives its runs, and an audit drives its "
        "replays itself. Replay on this machine (--cluster local, --simulate), or call the audit "
        "on a host of that cluster: in an allocation of Slurm (salloc), elsewhere with a cluster "
        "file for the Ray of its hosts (provider: {kind: attach, address: auto})"
    )
