"""Audits of runs that another machine drives, or has driven."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from launcher.audit.result import AuditResult
from launcher.cluster.schema import Cluster, ClusterRef, Slurm, Ssh
from launcher.core.errors import HostError, JobError, UsageError, error_of
from launcher.core.messages import from_wire
from launcher.executors.audit_by_ssh import audit_by_ssh
from launcher.executors.handle import RunHandle
from launcher.executors.local import LocalExecutor
from launcher.executors.registry import executor_for
from launcher.runs.run_record import RunRecord
from trainer.contract.config.job import Job


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
    if isinstance(executor, LocalExecutor) or isinstance(cluster.provider, Ssh):
        return ""
    how = "with a cluster file for the Ray of its hosts (provider: {kind: attach, address: auto})"
    if isinstance(cluster.provider, Slurm):
        how = "inside an allocation (salloc)"
    return (
        f"--cluster {cluster_ref.name}: one of its hosts drives its runs (provider: "
        f"{cluster.provider.kind}), and an audit drives its replays itself. Replay on this machine "
        "(--cluster local, --simulate), on hosts that are reached by SSH (provider: ssh), or call "
        f"the audit on a host of that cluster, {how}"
    )


def audit_on_hosts(
    record: RunRecord,
    cluster: tuple[Cluster, Ssh, ClusterRef],
    args: list[str],
    on_status: Callable[[str], None],
) -> AuditResult:
    """Audits a run on hosts that are reached by SSH, of which the first one drives the replays.

    Raises UsageError for a job that no audit replays, HostError, and the error of the command on
    the first host.
    """
    if not isinstance(record.job, Job):
        raise UsageError(f"{record.name}: an audit needs a job of Slipway's trainer")
    ended = audit_by_ssh(record.folder, record.job, cluster, args, on_status)
    printed, begin, rest = ended.output.partition("{\n")
    if not begin:
        raise error_of(ended.exit_code, ended.output.strip().removeprefix("error: "))
    on_status(printed.strip())
    found = from_wire(AuditResult, json.loads(begin + rest), "the verdict", HostError)
    return replace(found, cluster=cluster[2].name)
