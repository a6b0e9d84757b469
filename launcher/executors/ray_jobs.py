"""A run on a Ray cluster that is reached only by HTTP, as a Ray job that executes `launch`."""

from pathlib import Path

from launcher.cluster.schema import Attach
from launcher.core.errors import HostError, UnconfirmedError
from launcher.core.exit_codes import INTERRUPTED, OK
from launcher.executors.ssh import RunRequest, SshExecutor
from launcher.providers.ray.code_bundle import pack
from launcher.providers.ray_jobs.run_handle import Following, RayJob


def go(remotely: SshExecutor, begin: RunRequest, settings: Attach) -> int:
    """Sends the code, runs the job, and copies the run's folder here.

    Returns the exit code of `launch`.

    Raises HostError, ConfigError, and KeyboardInterrupt before the run has begun.
    """
    folder, tell = remotely.folder, remotely.tell
    code = pack(Path.cwd())
    run = RayJob.of(folder, settings, code, remotely.words)
    tell(f"sending the code to {run.head_name}")
    run.send(code)
    _begin(run, remotely, begin)
    tell(f"{run.name} is the job {run.submission_id}")
    if remotely.shown.detached:
        remotely.tell_where(run)
        return OK
    following = run.following()
    stopped = _follow(following, run, remotely)
    remotely.is_there = False
    remotely.has_begun = following.has_folder
    if following.has_folder:
        following.unpack(folder)
        run.localize(folder)
    return INTERRUPTED if stopped else following.exit_code


def _begin(run: RayJob, remotely: SshExecutor, begin: RunRequest) -> None:
    """Submits the job. Raises HostError.

    The run counts as remote, unless the cluster rejects the job.
    """
    work = remotely.run_order(begin, run.runs, secrets={})
    remotely.has_begun = remotely.is_there = True
    try:
        run.begin(work, remotely.folder)
    except UnconfirmedError:
        raise
    except HostError:
        remotely.has_begun = remotely.is_there = False
        raise
    finally:
        if remotely.has_begun:
            remotely.record(begin)


def _follow(following: Following, run: RayJob, remotely: SshExecutor) -> bool:
    """Displays the job until it ends. Returns whether Ctrl-C stopped it."""
    try:
        following.until_over(remotely.tell)
        return False
    except KeyboardInterrupt:
        remotely.tell("stopping the job, with a checkpoint; Ctrl-C again lets go of it")
        run.stop()
        following.until_over(remotely.tell)
        return True
