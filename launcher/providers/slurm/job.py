"""A run's job in Slurm's queue, as the run's folder remembers it."""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launcher.providers.errors import ProviderError
from launcher.providers.note import Note

COMMAND_TIMEOUT_S = 60.0
"""A controller that is busy answers late."""
INSIDE = "SLIPWAY_SLURM_JOB"
"""In the environment of a `launch` that the job itself has started: the job's id."""


@dataclass(frozen=True)
class Queued:
    """How a job stands, in Slurm's words."""

    state: str
    """ "PENDING", "RUNNING", "COMPLETING", ..."""
    reason: str
    """Why it is pending: "Resources", "Priority", ...; "None"."""
    starts: str
    """When Slurm expects it to start; "N/A"."""

    def __str__(self) -> str:
        if self.state != "PENDING":
            return self.state.lower()
        expected = "" if self.starts == "N/A" else f"expected to start at {self.starts}"
        told = ", ".join(filter(None, [self.reason.replace("None", ""), expected]))
        return f"queued ({told})" if told else "queued"


class SlurmJob(Note):
    """Of one run: the one that it was handed to last."""

    FILE: ClassVar = "slurm.json"

    job_id: str
    is_to_end: bool = False
    """Its user has asked it to stop: it is not requeued after that."""

    def look(self) -> Queued | None:
        """None: it is not in the queue any more. Raises ProviderError: Slurm does not answer."""
        try:
            told = command("squeue", "-h", "-j", self.job_id, "-o", "%T|%r|%S")
        except ProviderError as error:
            if "Invalid job id" in str(error):
                return None
            raise
        return Queued(*told.strip().split("|", 2)) if told.strip() else None

    def ask_to_stop(self) -> None:
        """Its batch script passes that on. Raises ProviderError."""
        command("scancel", "--batch", "--signal=TERM", self.job_id)

    def cancel(self) -> None:
        """End it, at once or before it starts. Raises ProviderError."""
        command("scancel", self.job_id)

    def requeue(self) -> None:
        """Raises ProviderError where it cannot be: it was cancelled."""
        command("scontrol", "requeue", self.job_id)


def queued(folder: Path) -> Queued | None:
    """How the job of a run stands, as seen from outside of it; None: it has none."""
    job = SlurmJob.read(folder)
    if job is None or job.job_id == os.environ.get(INSIDE):
        return None
    return job.look()


def command(*words: str) -> str:
    """What one of Slurm's commands prints.

    Raises ProviderError where it fails, is not there, or does not answer in time.
    """
    try:
        ended = subprocess.run(
            words, capture_output=True, text=True, stdin=subprocess.DEVNULL,
            timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
    except FileNotFoundError:
        raise ProviderError(
            f"{words[0]} is not on this machine: type the command where Slurm's jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise ProviderError(f"{words[0]} did not answer in {COMMAND_TIMEOUT_S:.0f} s") from None
    if ended.returncode:
        raise ProviderError(f"{words[0]}: {ended.stderr.strip() or ended.returncode}")
    return ended.stdout
