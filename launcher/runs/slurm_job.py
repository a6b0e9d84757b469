"""A run's job in Slurm's queue, as the run's folder remembers it."""

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from launcher.core.environment import INSIDE
from launcher.core.errors import ProviderError
from launcher.runs.records import RunRecord

COMMAND_TIMEOUT_S = 60.0
"""A controller that is busy answers late."""
NO_ANSWER = re.compile(
    r"timed out|Zero Bytes|receive failure|send failure|Communication|Unexpected message", re.I
)
"""In what Slurm's commands print after the controller may have got what they sent."""


class NoAnswerError(ProviderError):
    """Slurm did not answer; what was asked of it may have been done."""


@dataclass(frozen=True)
class Queued:
    """How a job stands, in Slurm's words."""

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
        told = ", ".join(filter(None, [self.reason.replace("None", ""), expected]))
        return f"queued ({told})" if told else "queued"


class SlurmJob(RunRecord):
    """The job that a run was handed to last; written down before `sbatch` is called."""

    FILE: ClassVar = "slurm.json"

    name: str
    """In the queue: no other job has it."""
    job_id: str = ""
    """"": `sbatch` has not answered."""
    is_to_end: bool = False
    """Its user has asked it to stop: it is not requeued after that."""

    def queue_status(self) -> Queued | None:
        """None: it is not in the queue. Raises ProviderError: Slurm does not answer."""
        chosen = f"--jobs={self.job_id}" if self.job_id else f"--name={self.name}"
        try:
            answer = command("squeue", "-h", chosen, "-o", "%T|%r|%S|%A").strip()
        except ProviderError as error:
            if "Invalid job id" in str(error):
                return None
            raise
        return Queued(*answer.splitlines()[0].split("|", 3)) if answer else None

    def ask_to_stop(self) -> None:
        """Its batch script passes that on. Raises ProviderError."""
        command("scancel", "--batch", "--signal=TERM", self._chosen)

    def cancel(self) -> None:
        """End it, at once or before it starts. Raises ProviderError."""
        command("scancel", self._chosen)

    def requeue(self) -> None:
        """Raises ProviderError where it cannot be: it was cancelled."""
        command("scontrol", "requeue", self.job_id)

    @property
    def _chosen(self) -> str:
        return self.job_id or f"--name={self.name}"


def queued(folder: Path) -> Queued | None:
    """How the job of a run stands, as seen from outside of it; None: it has none."""
    job = SlurmJob.read(folder)
    if job is None or job.name == os.environ.get(INSIDE):
        return None
    return job.queue_status()


def command(*words: str, env: Mapping[str, str] | None = None) -> str:
    """What one of Slurm's commands prints.

    Raises NoAnswerError where it does not answer in time, ProviderError where it fails or is not
    there.
    """
    try:
        ended = subprocess.run(
            words, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=env,
            timeout=COMMAND_TIMEOUT_S,
        )  # fmt: skip
    except FileNotFoundError:
        raise ProviderError(
            f"{words[0]} is not on this machine: type the command where Slurm's jobs are submitted"
        ) from None
    except subprocess.TimeoutExpired:
        raise NoAnswerError(f"{words[0]} did not answer in {COMMAND_TIMEOUT_S:.0f} s") from None
    if ended.returncode and NO_ANSWER.search(ended.stderr):
        raise NoAnswerError(f"{words[0]}: {ended.stderr.strip()}")
    if ended.returncode:
        raise ProviderError(f"{words[0]}: {ended.stderr.strip() or ended.returncode}")
    return ended.stdout
