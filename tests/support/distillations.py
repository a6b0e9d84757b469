"""Jobs that learn from a teacher."""

from pathlib import Path
from typing import Any

from tests.support.jobs import job_of
from trainer.contract.config.job import Job

LARGE = {"layers": 3, "d_model": 48, "heads": 4, "kv_heads": 4, "d_ff": 96}
"""Sizes of a teacher."""


def distill_job(teacher: Path, **changes: Any) -> Job:
    """A tiny job that learns from the run in a folder."""
    settings = {"teacher": str(teacher), "weight": 0.7, "temperature": 2.0}
    return job_of(**{**changes, "distill": {**settings, **changes.pop("distill", {})}})
