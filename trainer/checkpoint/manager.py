"""Sets up a run's checkpoints from its job: the folder and its lease, the restorer, the saver."""

from dataclasses import dataclass, replace
from pathlib import Path

import jax
from etils import epath

from trainer.checkpoint import folder_check as folders
from trainer.checkpoint.lease import Lease
from trainer.checkpoint.policy import NoSaving, Saving, Schedule, ScheduledSaving
from trainer.checkpoint.restore import Restorer
from trainer.checkpoint.saver import RunFacts, Saver
from trainer.checkpoint.tree import flatten
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.records.checkpoint_metadata import Base, folder_of
from trainer.contract.records.compatibility import code_of
from trainer.contract.storage.paths import to_path
from trainer.data.loader import BatchLoader
from trainer.data.mixture import Mixture
from trainer.data.token_cache import Tokens
from trainer.distributed.stop_vote import StopSignal
from trainer.step.train_step import TrainState
from trainer.telemetry.metrics import Report


@dataclass(frozen=True)
class Checkpoints:
    """The folder of a run's checkpoints, taken by this attempt."""

    folder: epath.Path
    lease: Lease
    run: RunFacts

    @classmethod
    def open(
        cls,
        job: Job,
        plan: Plan,
        tokens: Tokens | Mixture,
        run_dir: Path,
        attempt: int,
        shapes: TrainState,
        report: Report,
    ) -> "Checkpoints | None":
        """Takes the folder, or returns None when the job has no checkpoints.

        Every process must call it. Raises ConfigError for a URL that this host cannot reach,
        FolderError when the folder cannot serve all hosts, StaleError when a newer attempt has it.
        """
        if job.checkpoint is None:
            return None
        folder = to_path(folder_of(job, run_dir))
        run_id = folders.run_id(run_dir)
        size = sum(leaf.size * leaf.dtype.itemsize for leaf in flatten(shapes).values())
        lease = folders.prepare(folder, run_id, attempt, size, report.warn)
        run = RunFacts(
            job, plan, tokens.corpus_sha256, run_id, attempt, code_of(job), tokens.trained
        )
        return cls(folder, lease, run)

    def restorer(self, report: Report) -> Restorer:
        return Restorer(self.folder, self.run.job, self.run.corpus_sha256, report)

    def saving(
        self, loader: BatchLoader, base: Base | None, stop: StopSignal, report: Report
    ) -> Saving:
        """Returns a Saving with the job's schedule; SIGTERM requests a save and the run's end."""
        job = self.run.job
        assert job.checkpoint
        first = jax.process_index() == 0
        schedule = Schedule(job.checkpoint, job.steps, stop, keeps_time=first)
        saver = Saver(self.folder, self.lease, replace(self.run, base=base), report)
        return ScheduledSaving(schedule, saver, loader)


def saving_of(
    checkpoints: Checkpoints | None,
    loader: BatchLoader,
    base: Base | None,
    stop: StopSignal,
    report: Report,
) -> Saving:
    """Returns a run's Saving. `base` is the base model of a run that trains adapters."""
    return checkpoints.saving(loader, base, stop, report) if checkpoints else NoSaving()
