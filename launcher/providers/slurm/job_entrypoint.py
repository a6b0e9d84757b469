"""The batch script of a job.

    python -m launcher.providers.slurm.job_entrypoint JOB FOLDER [KEY=VALUE ...]

It runs on the job's first host and resumes the run. It requeues the job when Slurm, not the user,
stops it: because another job gets the hosts, or because the time limit is reached.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from launcher.core.errors import HostError
from launcher.core.exit_codes import INTERRUPTED, OK
from launcher.core.states import RunState
from launcher.providers.slurm import job_environment
from launcher.runs.directory import RunDir
from launcher.runs.slurm_job import SlurmJob
from trainer.contract.protocol.environment import SLURM_JOB

STOPPED = (INTERRUPTED, -signal.SIGTERM)
"""Exit codes after the signal: with a checkpoint, or before the handler was installed."""


def main() -> int:
    name, folder, overrides = sys.argv[1], Path(sys.argv[2]), sys.argv[3:]
    job = SlurmJob(name=name, job_id=os.environ["SLURM_JOB_ID"])
    if not _is_wanted(folder, job):
        print(f"{folder} is no longer the run of the job {job.name}; exiting", flush=True)
        return OK
    job.write(folder)
    os.environ[SLURM_JOB] = job.name
    os.environ.update(job_environment.read(folder))
    launch = subprocess.Popen([sys.executable, "-m", "launcher", "resume", str(folder), *overrides])
    asked = False

    def pass_on(*_: object) -> None:
        """Forwards one signal: Slurm signals script and hosts, and a second one would kill it."""
        nonlocal asked
        if not asked:
            launch.send_signal(signal.SIGTERM)
        asked = True

    signal.signal(signal.SIGTERM, pass_on)
    code = launch.wait()
    if not (asked and code in STOPPED and not _is_to_end(folder) and _requeue(folder, job)):
        job_environment.forget(folder)
    return code


def _is_wanted(folder: Path, job: SlurmJob) -> bool:
    """Returns False for a job that Slurm accepted late: the run was stopped or has another job."""
    recorded = SlurmJob.read(folder)
    return recorded is not None and recorded.name == job.name and not recorded.is_to_end


def _is_to_end(folder: Path) -> bool:
    job = SlurmJob.read(folder)
    return job is not None and job.is_to_end


def _requeue(folder: Path, job: SlurmJob) -> bool:
    """Requeues the job; returns whether Slurm will end this script and restart it later."""
    try:
        job.requeue()
    except HostError as error:
        print(f"not requeued: {error}", flush=True)
        return False
    with RunDir.open(folder) as run:
        reason = "Slurm preempted the job, or its time limit was reached"
        run.set_state(RunState.QUEUED, run.recorded.position, reason=reason)
    return True


if __name__ == "__main__":
    sys.exit(main())
