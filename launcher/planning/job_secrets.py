"""Variables of the launching user that a job's hosts get. Only their names are stored."""

import os

from trainer.contract.config.job import BaseJob

SHOWN = "(secret)"
"""Text shown in place of a value."""


def values(job: BaseJob) -> dict[str, str]:
    """Returns the secrets that are set on this machine, by name."""
    return {name: os.environ[name] for name in job.secrets if name in os.environ}


def missing(job: BaseJob) -> list[str]:
    """Returns a problem for each secret that is not set."""
    return [
        f"secrets: the environment variable {name} is not set. Export it with {name}=..., or "
        "remove it from the job"
        for name in job.secrets
        if name not in os.environ
    ]
