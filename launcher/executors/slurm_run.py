"""The handle of a run that is a job in Slurm's queue."""

import time
from pathlib import Path

from rich.text import Text

from launcher.core.errors import HostError, InterruptError, JobError, SlipwayError, error_of
from launcher.core.events import Listener
from launcher.core.states import RunState
from launcher.core.wait import wait_until
from launcher.executors.follow import detached, follow_run
from launcher.executors.local_run import LocalRunHandle
from launcher.executors.options import LaunchOptions
from launcher.providers.slurm import job_environment
from launcher.runs.directory import RunDir
from launcher.runs.folder import is_alive
from launcher.runs.host_logs import FOLLOWED_TAIL
from launcher.runs.slurm_job import Queued, SlurmJob
from launcher.runs.state_file import RecordedState
from launcher.runs.status import RunStatus, describe, read_status

POLL_INTERVAL_S, QUEUE_POLL_INTERVAL_S = 0.5, 2.0
ENDING_TIMEOUT_S = 90.0
"""Seconds beyond the program's grace period: Slurm kills a job that does not end by itself."""
SHOWN_LINES = 20


class SlurmRunHandle(LocalRunHandle):
    """A run whose driver is a job in Slurm's queue. The run's directory is shared with it."""

    @property
    def job(self) -> SlurmJob | None:
        """The run's job while it is in the queue."""
        job = SlurmJob.read(self.folder)
        return job if job and job.queue_status() else None

    def wait(self, listener: Listener | None = None) -> RunStatus:
        job = SlurmJob.read(self.folder)
        while job and _query(self.folder, job) is not None:
            super().wait(listener)
            time.sleep(QUEUE_POLL_INTERVAL_S)
        return super().wait(listener)

    def follow(self, options: LaunchOptions) -> RunStatus:
        """Displays the run until its job has left the queue for good, see `follow_run`."""
        if job := self.job:
            return _follow(self.folder, job, options)
        return super().follow(options)

    def stop(self, *, force: bool = False, listener: Listener | None = None) -> None:
        job = SlurmJob.read(self.folder)
        may_appear = job is not None and not job.job_id and not job.is_to_end
        if job and (may_appear or job.queue_status()):
            _stop(self.folder, job, force, listener or Listener())
        else:
            super().stop(force=force, listener=listener)


def _follow(folder: Path, job: SlurmJob, options: LaunchOptions) -> RunStatus:
    console, shown, has_begun = options.console, "", False
    tail = FOLLOWED_TAIL if _has_begun(folder) else 0
    try:
        while (found := _query(folder, job)) is not None:
            if str(found) != shown and found.state == "PENDING":
                shown = str(found)
                console.print(Text(f"{folder.name} is {found}"), soft_wrap=True)
            if _has_begun(folder):
                has_begun = True
                _follow_attempt(folder, options, tail)
                tail = 0
            time.sleep(POLL_INTERVAL_S)
    except KeyboardInterrupt:
        raise detached(folder) from None
    found = read_status(folder)
    if not has_begun:
        _explain_end(found, job)
    elif found.exit_code:
        raise error_of(found.exit_code, describe(found), run_dir=folder)
    return found


def _follow_attempt(folder: Path, options: LaunchOptions, tail: int) -> None:
    """Displays the run until no process runs it: Slurm may requeue a job that lost a host."""
    try:
        follow_run(folder, options, tail)
    except SlipwayError:
        if is_alive(folder):  # the user has detached
            raise


def _stop(folder: Path, job: SlurmJob, force: bool, listener: Listener) -> None:
    """Stops a job: with a checkpoint, immediately, or before it has begun. Raises HostError."""
    job.model_copy(update={"is_to_end": True}).write(folder)  # a job accepted late ends by itself
    found = job.queue_status()
    in_order = not force and found is not None and found.state == "RUNNING" and is_alive(folder)
    grace_s = RecordedState.read(folder).grace_s or 0.0
    if in_order:
        listener.on_status(f"stopping {folder.name}, with a checkpoint")
        job.ask_to_stop()
    else:
        job.cancel()

    def is_over() -> bool:
        return not is_alive(folder) and job.queue_status() is None

    timeout_s = ENDING_TIMEOUT_S + grace_s * in_order
    if not wait_until(is_over, timeout_s, poll_interval_s=POLL_INTERVAL_S):
        raise JobError(f"Slurm's job {job.job_id or job.name} has not ended yet")
    job_environment.forget(folder)
    if read_status(folder).state in (RunState.QUEUED, RunState.LOST):
        with RunDir.open(folder) as run:
            run.set_state(RunState.STOPPED, run.recorded.position)


def _has_begun(folder: Path) -> bool:
    return is_alive(folder) and RecordedState.read(folder).state is not RunState.QUEUED


def _query(folder: Path, job: SlurmJob) -> Queued | None:
    """Queries Slurm until it answers: a controller that is silent for a while ends nothing."""
    while True:
        try:
            return job.queue_status()
        except HostError:
            if not is_alive(folder):
                time.sleep(QUEUE_POLL_INTERVAL_S)


def _explain_end(found: RunStatus, job: SlurmJob) -> None:
    """Raises the error of a job that was over before it could be displayed, if there is one."""
    folder, log = found.folder, found.folder / "logs" / "slurm.log"
    recorded = SlurmJob.read(folder)
    if recorded is not None and recorded.is_to_end:
        raise InterruptError(f"{found.name} was taken out of the queue", run_dir=folder)
    if found.state is RunState.LOST:
        lines = (log.read_text() if log.exists() else "").splitlines()[-SHOWN_LINES:]
        raise HostError(
            f"Slurm's job {job.job_id} has ended before the run began",
            details=lines,
            run_dir=folder,
        )
    if found.exit_code:
        raise error_of(found.exit_code, describe(found), run_dir=folder)
