"""A run's job in Slurm's queue, as recorded in the run's folder."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launcher.core.errors import HostError, UnreachableError
from launcher.runs.records import RunRecord
from trainer.contract.protocol.environment import SLURM_JOB

COMMAND_TIMEOUT_S = 60.0
"""Timeout of a Slurm command: a busy controller answers late."""
NO_ANSWER = re.compile(
    r"timed out|Zero Bytes|receive failure|send failure|Communication|Unexpected message", re.I
)
"""Matches errors of Slurm's commands after which the controller may have the request."""


@dataclass(frozen=True)
class Queued:
    """Status of a job, in Slurm's terms."""

    state: str
    """ "PENDING", "RUNNING", "COMPLETING", ..."""
    reason: str
    """Why it is pending: "Resources", "Priority", ...; "None"."""
    starts: str
    """When Slurm expects it to start; "N/A"."""
    job_id: str = ""

    def __str__(self) -> str:
        if self.state != "PENDING":
            return self.state.lower()
        expected = "" if self.starts == "N/A" else f"expected to start at {self.starts}"
        details = ", ".join(filter(None, [self.reason.replace("None", ""), expected]))
        return f"queued ({details})" if details else "queued"


class SlurmJob(RunRecord):
    """The last Slurm job of a run, recorded before `sbatch` is called."""

    FILE: ClassVar = "slurm.json"

    name: str
    """Name in the queue, which no other job has."""
    job_id: str = ""
    """Slurm's id; "" until `sbatch` has answered."""
    is_to_end: bool = False
    """Whether the user has requested a stop, after which the job is not requeued."""

    def queue_status(self) -> Queued | None:
        """Returns the job's status, or None when it is not in the queue.

        Raises HostError when Slurm does not answer.
        """
        chosen = f"--jobs={self.job_id}" if self.job_id else f"--name={self.name}"
        try:
            answer = command("squeue", "-h", chosen, "-o", "%T|%r|%S|%A").strip()
        except HostError as error:
            if "Invalid job id" in str(error):
                return None
            raise
        return Queued(*answer.splitlines()[0].split("|", 3)) if answer else None

    def ask_to_stop(self) -> None:
        """Sends SIGTERM to the batch script, which forwards it. Raises HostError."""
        command("scancel", "--batch", "--signal=TERM", self._chosen)

    def cancel(self) -> None:
        """Ends the job immediately, or before it starts. Raises HostError."""
        command("scancel", self._chosen)

    def requeue(self) -> None:
        """Requeues the job. Raises HostError when that is impossible: it was cancelled."""
        command("scontrol", "requeue", self.job_id)

    @property
    def _chosen(self) -> str:
        return self.job_id or f"--name={self.name}"


def queued(folder: Path) -> Queued | None:
    """Returns the status of a run's job; None without a job, and for calls from inside it."""
    job = SlurmJob.read(folder)
    if job is None or job.name == os.environ.get(SLURM_JOB):
        return None
    return job.queue_status()


def command(*args: str, env: Mapping[str, str] | None = None) -> str:
    """Runs a Slurm command and returns what it prints.

    Raises UnreachableError when Slurm does not answer in time, HostError when the command fails or
    is not installed.
    """
    try:
        ended = subprocess.run(
            args, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env,
            timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
    except FileNotFoundError:
        raise HostError(
            f"{args[0]} is not on this machine: type the command where Slurm's jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise UnreachableError(f"{args[0]} did not answer in {COMMAND_TIMEOUT_S:.0f} s") from None
    if ended.returncode and NO_ANSWER.search(ended.stderr):
        raise UnreachableError(f"{args[0]}: {ended.stderr.strip()}")
    if ended.returncode:
        raise HostError(f"{args[0]}: {ended.stderr.strip() or ended.returncode}")
    return ended.stdout
