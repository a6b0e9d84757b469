"""From a run that is ready to start to a job in Slurm's queue."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from launcher.cluster import Slurm
from launcher.providers.slurm.job import SlurmJob, command
from trainer.spec.plan import World

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


def sbatch_words(
    folder: Path, world: World, settings: Slurm, grace_s: float, overrides: Sequence[str]
) -> list[str]:
    """One task on each host; SIGTERM in time before the end, so that a checkpoint is saved."""
    script = shlex.join([sys.executable, "-m", BATCH, str(folder), *overrides])
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
        f"--job-name={folder.name}",
        f"--nodes={world.processes}",
        "--ntasks-per-node=1",
        f"--signal=B:TERM@{ENDING_S + grace_s:.0f}",
        f"--output={folder}/logs/slurm.log",
        "--open-mode=append",
        "--requeue",
        *[f"--{name}={value}" for name, value in named.items() if value is not None],
        *settings.options,
        f"--wrap=exec {script}",
    ]
