"""What a checkpoint of a job would say of itself."""

from typing import Any

from tests.support.worlds import cpu_world
from trainer.contract.config.job import Job
from trainer.contract.records.checkpoint_metadata import CheckpointMetadata


def about_of(job: Job, /, step: int = 10, **fields: Any) -> CheckpointMetadata:
    base: dict[str, Any] = {
        "step": step,
        "examples": step * job.data.global_batch,
        "time": 1_700_000_000.0,
        "run_id": "0" * 32,
        "attempt": 1,
        "loss": 2.5,
        "eval_loss": None,
        "job": job.model_dump(mode="json"),
        "corpus_sha256": "a" * 64,
        "world": cpu_world(2, 4),
        "mesh": {"data": 1, "fsdp": 4, "tensor": 2},
        "versions": {},
        "code": "c" * 64,
        "arrays": {},
        "files": {},
    }
    return CheckpointMetadata(**{**base, **fields})
