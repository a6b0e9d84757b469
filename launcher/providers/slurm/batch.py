"""The batch script of a job: `python -m launcher.providers.slurm.batch RUN_FOLDER [KEY=VALUE ...]`.

On the job's first host it goes on with the run, and hands it back to the queue where Slurm and not
its user wanted it to stop: when another job is to have the hosts, or the time is over.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path

from launcher.exits import INTERRUPTED
from launcher.providers.errors import ProviderError
from launcher.providers.slurm.job import INSIDE, SlurmJob
from launcher.runs import POSITION, QUEUED, Run

STOPPED = (INTERRUPTED, -signal.SIGTERM)
"""By the signal: with a checkpoint, or before it could listen for one."""


def main() -> int:
    folder, overrides = Path(sys.argv[1]), sys.argv[2:]
    job = SlurmJob(job_id=os.environ["SLURM_JOB_ID"])
    os.environ[INSIDE] = job.job_id
    launch = subprocess.Popen([sys.executable, "-m", "launcher", "resume", str(folder), *overrides])
    asked = False

    def pass_on(*_: object) -> None:
        """Once: Slurm tells the script and the hosts, and a second signal would end it at once."""
        nonlocal asked
        if not asked:
            launch.send_signal(signal.SIGTERM)
        asked = True

    signal.signal(signal.SIGTERM, pass_on)
    code = launch.wait()
    if asked and code in STOPPED and not _is_to_end(folder):
        _requeue(folder, job)
    return code


def _is_to_end(folder: Path) -> bool:
    job = SlurmJob.read(folder)
    return job is not None and job.is_to_end


def _requeue(folder: Path, job: SlurmJob) -> None:
    """The job that goes on is this one: Slurm ends this script, and starts it anew."""
    try:
        job.requeue()
    except ProviderError as error:
        print(f"not requeued: {error}", flush=True)
        return
    with Run.open(folder) as run:
        kept = {name: run.state.get(name) for name in POSITION}
        run.set_state(QUEUED, reason="Slurm needed its hosts, or its time was over", **kept)


if __name__ == "__main__":
    sys.exit(main())
