"""Submits a run that is ready to start as a job to Slurm's queue."""

import shlex
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.cluster.slurm import Slurm
from launcher.core.errors import HostError, UnconfirmedError, UnreachableError
from launcher.planning import job_secrets
from launcher.providers.slurm import job_environment
from launcher.runs.slurm_job import Queued, SlurmJob, command
from trainer.contract.planning.plan import World
from trainer.contract.protocol.environment import SLURM_JOB

POLL_INTERVAL_S = 1.0
FIND_TIMEOUT_S = 60.0
"""Seconds to search for a job after an unanswered `sbatch`: a busy controller queues it late."""
BATCH = "launcher.providers.slurm.job_entrypoint"
ENDING_S = 60.0
"""Seconds before the job's time limit, beyond the program's grace period for saving."""


def submit(
    folder: Path,
    world: World,
    settings: Slurm,
    grace_s: float,
    priority: int,
    overrides: Sequence[str],
    secrets: Mapping[str, str],
) -> SlurmJob:
    """Submits a job that resumes the run in `folder`, and records it there before calling `sbatch`.

    Raises UnconfirmedError when Slurm may have accepted the job. After any other HostError neither
    the job nor its record exists.
    """
    job = SlurmJob(name=f"{folder.name}-{uuid.uuid4().hex[:8]}")
    job.write(folder)
    job_environment.write(folder, secrets)
    try:
        sbatch = sbatch_command(job.name, folder, world, settings, grace_s, priority, overrides)
        job.job_id = _accepted(job, sbatch, job_secrets.without_secrets(secrets))
    except UnconfirmedError:
        raise
    except HostError:
        job.forget(folder)
        job_environment.forget(folder)
        raise
    job.write(folder)
    return job


def _accepted(job: SlurmJob, sbatch: Sequence[str], environment: Mapping[str, str]) -> str:
    """Returns the id of the submitted job; queries the queue if `sbatch` does not answer."""
    try:
        return command(*sbatch, env=environment).strip().partition(";")[0]
    except UnreachableError as error:
        if found := _find(job):
            return found.job_id
        raise UnconfirmedError(
            f"{error}. Slurm may have accepted the job {job.name}; it is not in the queue yet"
        ) from None


def _find(job: SlurmJob) -> Queued | None:
    """Waits for the job in the queue. Returns None when it is not there after FIND_TIMEOUT_S."""
    deadline = time.monotonic() + FIND_TIMEOUT_S
    while True:
        try:
            if found := job.queue_status():
                return found
        except HostError:
            pass  # retried
        if time.monotonic() > deadline:
            return None
        time.sleep(POLL_INTERVAL_S)


def inspect_hosts(folder: Path, cluster: str, world: World, settings: Slurm) -> str:
    """Returns what `launch doctor` prints in a separate job. Raises HostError.

    `folder` must be shared by the hosts. Waits in the queue without a time limit.
    """
    log = folder / "doctor.log"
    typed = shlex.join([sys.executable, "-m", "launcher", "doctor", "-c", cluster, "-o", "json"])
    job = SlurmJob(name=f"slipway-doctor-{uuid.uuid4().hex[:8]}")
    script = f"{SLURM_JOB}={job.name} exec {typed}"
    sbatch = [*_job_command(job.name, world, settings), f"--output={log}", f"--wrap={script}"]
    try:
        job.job_id = _accepted(job, sbatch, job_secrets.without_secrets(()))
        while job.queue_status() is not None:
            time.sleep(POLL_INTERVAL_S)
    except BaseException:
        job.cancel()
        raise
    return log.read_text(errors="replace") if log.exists() else ""


def sbatch_command(
    name: str,
    folder: Path,
    world: World,
    settings: Slurm,
    grace_s: float,
    priority: int,
    overrides: Sequence[str],
) -> list[str]:
    """Returns the `sbatch` command of a run; SIGTERM comes early enough to save a checkpoint.

    Slurm subtracts `--nice` from the priority that it computes for the job.
    """
    script = shlex.join([sys.executable, "-m", BATCH, name, str(folder), *overrides])
    return [
        *_job_command(name, world, settings),
        *([f"--nice={-priority}"] if priority else []),
        f"--signal=B:TERM@{ENDING_S + grace_s:.0f}",
        f"--output={folder}/logs/slurm.log",
        "--open-mode=append",
        "--requeue",
        f"--wrap=exec {script}",
    ]


def _job_command(name: str, world: World, settings: Slurm) -> list[str]:
    """Returns the part of the `sbatch` command that every job has: one task per host."""
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
        f"--nodes={world.hosts}",
        "--ntasks-per-node=1",
        *[f"--{name}={value}" for name, value in named.items() if value is not None],
        *settings.sbatch_args,
    ]
