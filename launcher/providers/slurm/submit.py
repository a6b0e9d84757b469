"""From a run that is ready to start to a job in Slurm's queue."""

import shlex
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from launcher.cluster import Slurm
from launcher.providers.slurm.job import INSIDE, SlurmJob, command
from trainer.spec.plan import World

LOOK_S = 1.0
BATCH = "launcher.providers.slurm.batch"
ENDING_S = 60.0
"""Beyond what the program may take to save, before the job's time is over."""


def submit(
    folder: Path, world: World, settings: Slurm, grace_s: float, overrides: Sequence[str]
) -> SlurmJob:
    """A job that goes on with the run in `folder`, with this environment. Raises ProviderError."""
    told = command(*sbatch_words(folder, world, settings, grace_s, overrides))
    job = SlurmJob(job_id=told.strip().partition(";")[0])
    job.write(folder)
    return job


def look(folder: Path, cluster: str, world: World, settings: Slurm) -> str:
    """What `launch doctor` prints on hosts that are got for it; raises ProviderError.

    `folder`: one that they share. Waits in the queue as long as it takes.
    """
    log = folder / "doctor.log"
    typed = shlex.join([sys.executable, "-m", "launcher", "doctor", "-c", cluster, "-o", "json"])
    script = f"{INSIDE}=$SLURM_JOB_ID exec {typed}"
    words = [*_job_words("slipway-doctor", world, settings), f"--output={log}", f"--wrap={script}"]
    job = SlurmJob(job_id=command(*words).strip().partition(";")[0])
    try:
        while job.look() is not None:
            time.sleep(LOOK_S)
    except BaseException:
        job.cancel()
        raise
    return log.read_text(errors="replace") if log.exists() else ""


def sbatch_words(
    folder: Path, world: World, settings: Slurm, grace_s: float, overrides: Sequence[str]
) -> list[str]:
    """One task on each host; SIGTERM in time before the end, so that a checkpoint is saved."""
    script = shlex.join([sys.executable, "-m", BATCH, str(folder), *overrides])
    return [
        *_job_words(folder.name, world, settings),
        f"--signal=B:TERM@{ENDING_S + grace_s:.0f}",
        f"--output={folder}/logs/slurm.log",
        "--open-mode=append",
        "--requeue",
        f"--wrap=exec {script}",
    ]


def _job_words(name: str, world: World, settings: Slurm) -> list[str]:
    """One task on each host."""
    named = {
        "partition": settings.partition,
        "account": settings.account,
        "qos": settings.qos,
        "time": settings.time_limit,
        "gpus-per-node": world.devices_per_host if world.platform == "gpu" else None,
    }
    return [
        "sbatch",
        "--parsable",
        f"--job-name={name}",
        f"--nodes={world.processes}",
        "--ntasks-per-node=1",
        *[f"--{name}={value}" for name, value in named.items() if value is not None],
        *settings.options,
    ]
