"""What a checkpoint records beside the arrays: facts about its run, and the run's progress."""

import time
from collections.abc import Mapping
from dataclasses import dataclass

import jax

from trainer.checkpoint.digests import digests
from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Plan
from trainer.contract.protocol import versions
from trainer.contract.records.checkpoint_metadata import Array, Base, CheckpointMetadata
from trainer.contract.records.exclusions import Exclusions


@dataclass(frozen=True)
class Progress:
    """A run's progress when it saves."""

    step: int
    examples: int
    loss: float
    eval_loss: float | None
    recent: tuple[tuple[int, float, float], ...] = ()
    """The last steps: see RecentSteps."""
    checked_step: int | None = None
    """Newest step whose state a later check of hosts has confirmed."""


@dataclass(frozen=True)
class RunFacts:
    """Facts about a run that its checkpoints record."""

    job: Job
    plan: Plan
    corpus_sha256: str
    run_id: str
    attempt: int
    code: str
    """SHA-256 over all code that computes the job."""
    tokenizer: str = ""
    """The text of `tokenizer.json` if a tokenizer was trained for the run."""
    base: Base | None = None
    """The base model of its adapters."""
    teacher: Base | None = None
    """The teacher that it learns from."""
    excluded: Exclusions = ()
    """The examples that the run leaves out."""

    def metadata(
        self, progress: Progress, arrays: dict[str, Array], data: str = ""
    ) -> CheckpointMetadata:
        """Returns the metadata of a checkpoint that is about to be saved.

        `data`: see CheckpointMetadata.
        """
        return CheckpointMetadata(
            step=progress.step,
            examples=progress.examples,
            time=time.time(),
            run_id=self.run_id,
            attempt=self.attempt,
            loss=progress.loss,
            eval_loss=progress.eval_loss,
            job=self.job.model_dump(mode="json"),
            corpus_sha256=self.corpus_sha256,
            world=self.plan.world,
            mesh=self.plan.mesh,
            versions=versions.versions(),
            code=self.code,
            arrays=arrays,
            files={},
            data=data,
            base=self.base,
            teacher=self.teacher,
            recent=progress.recent,
            checked_step=progress.checked_step,
            excluded=self.excluded,
        )


def array_facts(flat: Mapping[str, jax.Array]) -> dict[str, Array]:
    """Returns the shape, dtype and digest of each array."""
    numbers = digests(flat.values())
    return {
        name: Array(shape=leaf.shape, dtype=str(leaf.dtype), digest=number)
        for (name, leaf), number in zip(flat.items(), numbers, strict=True)
    }
