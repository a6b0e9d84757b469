"""`launch run` and `launch resume` on remote hosts: the first host drives the run.

This machine provisions the hosts and starts Ray. Then `launch` starts on the head, where a lost
connection does not end it. This machine displays the run as `launch attach` does. At the end, it
copies the run's folder here, and the hosts keep only what the next launch can use.
"""

import shutil
from collections.abc import Sequence
from pathlib import Path

from launcher.cluster.schema import Attach, Cluster, ClusterRef, Ssh, find_cluster
from launcher.core.errors import HostError
from launcher.core.files import read_object
from launcher.executors import new_secrets, ray_jobs
from launcher.executors.gcp import GcpExecutor
from launcher.executors.options import OutputOptions
from launcher.executors.ssh import HostMonitor, RunRequest, SshExecutor
from launcher.planning import job_secrets
from launcher.planning.spec import LaunchSpec
from launcher.providers.ray_jobs.run_handle import RayJob
from launcher.providers.ssh.run_handle import RemoteRun
from launcher.runs.directory import REMOTE, RunFolderError, make_folder
from launcher.runs.remote import RemoteRunHandle
from trainer.contract.config.command import load_job
from trainer.contract.config.loader import ConfigError, Loaded, dump


def run_remotely(launch: LaunchSpec, *, fresh: bool, shown: OutputOptions) -> int:
    """Runs a job on remote hosts, and returns the exit code of `launch`."""
    folder, text = launch.run_dir, dump(launch.job)
    remotely = SshExecutor(folder, launch.cluster, launch.cluster_name, launch.cluster_ref, shown)

    def go() -> int:
        make_folder(folder, text, fresh=fresh)
        try:
            return _go(remotely, RunRequest(launch.job, text, fresh=fresh))
        finally:
            if not remotely.has_begun:
                shutil.rmtree(folder)

    return remotely.report_errors(go)


def resume_remotely(
    folder: Path,
    overrides: Sequence[str],
    cluster: Loaded[Cluster],
    words: ClusterRef,
    shown: OutputOptions,
) -> int:
    """Resumes a run on remote hosts, with this machine's copy of the job; returns the exit code."""
    name = Path(cluster.source).stem
    remotely = SshExecutor(folder, cluster.value, name, words, shown)

    def go() -> int:
        job = load_job(folder / "job.yaml", overrides).value
        is_by_http = isinstance(cluster.value.provider, Attach)  # see `_refuse` of run.py
        if not is_by_http:
            new_secrets.confirm(job, folder, overrides)
            if problems := job_secrets.missing(job):
                raise ConfigError(problems)
        return _go(remotely, RunRequest(job, None, overrides))

    return remotely.report_errors(go)


def _go(remotely: SshExecutor, begin: RunRequest) -> int:
    """Runs through the Jobs API, on the hosts of the cluster file, or on slices for this run."""
    provider = remotely.cluster.provider
    if isinstance(provider, Attach):
        return ray_jobs.go(remotely, begin, provider)
    if isinstance(provider, Ssh):
        return remotely.submit(begin, provider, HostMonitor())
    return GcpExecutor(remotely).go(begin)


def remote_cluster(words: ClusterRef) -> Loaded[Cluster] | None:
    """Returns the cluster if its hosts are remote, else None. Raises ConfigError."""
    cluster = find_cluster(words.name)
    return cluster if cluster.value.is_elsewhere and not words.simulated else None


def still_there(folder: Path) -> RemoteRunHandle | None:
    """Returns a folder's run that is still on another machine, or None.

    Copies a run that is over to this machine first. Raises RunFolderError when its host cannot be
    queried.
    """
    kind = RayJob if "submission_id" in read_object(folder / REMOTE) else RemoteRun
    try:
        run = kind.read(folder)
        if isinstance(run, RayJob) and not run.is_known(folder):
            run.forget(folder)
            return _never_there(folder, run)
        if run is not None and run.is_over():
            run.fetch(folder)
            return None
    except HostError as error:
        raise RunFolderError(f"{folder}: {error}") from None
    return run


def _never_there(folder: Path, run: RayJob) -> None:
    """Accepts a folder whose run is as it was before the job that the cluster did not accept.

    Raises RunFolderError when the folder has no run.
    """
    if not (folder / "state.json").exists():
        raise RunFolderError(
            f"{folder}: {run.head_name} has not accepted the job {run.submission_id}, and nothing "
            "of it runs. Start it again, with --fresh"
        )
