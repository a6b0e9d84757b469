"""Small jobs and worlds for the trainer's tests."""

from typing import Any

from trainer.contract.config.job import Job
from trainer.contract.planning.plan import Corpus, World

TINY = {"layers": 2, "d_model": 32, "heads": 4, "kv_heads": 2, "d_ff": 64}


def job_of(**changes: Any) -> Job:
    """A tiny job on the standard library's text; keyword `section={...}` changes one section."""
    job: dict[str, Any] = {
        "name": "tiny",
        "steps": 3,
        "model": TINY,
        "data": {"source": "stdlib", "seq_len": 32, "global_batch": 8},
        "optimizer": {"learning_rate": 3e-3},
        "eval": None,
        "sample": None,
        "checkpoint": None,
    }
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(job.get(key), dict) and "module" not in value
        job[key] = {**job[key], **value} if both else value
    return Job.model_validate(job)


def world_of(processes: int = 1, devices: int = 1, **facts: Any) -> World:
    """`processes` hosts of `devices` CPU devices each."""
    known = {
        "accelerator": "cpu", "platform": "cpu", "simulated": False, "slices": 1,
        "hosts_per_slice": processes, "devices_per_host": devices, "topology": None,
        "host_bounds": None,
    }  # fmt: skip
    return World(**{**known, **facts})


def corpus_of(job: Job) -> Corpus:
    return Corpus(source=job.data.source, sha256=None)
