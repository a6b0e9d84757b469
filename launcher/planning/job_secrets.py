"""Variables of whoever launches that a job's hosts get: of them only the names are written down."""

import os

from trainer.contract.config.job import BaseJob

SHOWN = "(secret)"
"""In place of a value."""


def values(job: BaseJob) -> dict[str, str]:
    """Of those that are set here."""
    return {name: os.environ[name] for name in job.secrets if name in os.environ}


def missing(job: BaseJob) -> list[str]:
    """A problem for each that is not."""
    return [
        f"secrets: {name} is not set here: export {name}=..., or leave it out of the job"
        for name in job.secrets
        if name not in os.environ
    ]
