"""Asks the user before a resumed run gets variables that no launch on this machine has named."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.prompt import Confirm

from launcher.runs import registry
from launcher.runs.folder import resume_command
from trainer.contract.config.job import BaseJob
from trainer.contract.config.loader import ConfigError
from trainer.contract.protocol.environment import SLURM_JOB


def confirm(job: BaseJob, folder: Path, overrides: Sequence[str]) -> None:
    """Raises ConfigError for new names, unless the user confirms them on a terminal.

    Names in an override of this command need no confirmation. In a Slurm job, the names were
    confirmed when it was submitted.
    """
    given = {one.partition("=")[0].strip() for one in overrides}
    new = {key: names for key, names in _new(job, folder).items() if names and key not in given}
    if SLURM_JOB in os.environ or not new:
        return
    names = [name for names in new.values() for name in names]
    problem = (
        f"{folder / 'job.yaml'}: {' and '.join(new)}: {', '.join(names)}: no launch from this "
        f"machine named {'it' if len(names) == 1 else 'them'} for this run"
    )
    if sys.stdin.isatty():
        errors = Console(stderr=True)
        errors.print(problem, style="bold yellow", markup=False, highlight=False, soft_wrap=True)
        if Confirm.ask("send the values to the hosts?", console=errors, default=False):
            return
    named = " ".join(f"'{key}={_as_override(job, key)}'" for key in new)
    raise ConfigError(
        [f"{problem}. To send the values to its hosts: {resume_command(folder)} {named}"]
    )


def _new(job: BaseJob, folder: Path) -> dict[str, list[str]]:
    """Returns the names that no launch has named for the run, by the key of the job."""
    known = registry.secrets_of(folder)
    of_targets = [name for target in job.notify or () for name in target.secret_names]
    named = {"secrets": job.secrets, "notify": of_targets}
    return {key: [name for name in names if name not in known] for key, names in named.items()}


def _as_override(job: BaseJob, key: str) -> str:
    """Returns the value of a key as JSON, which YAML reads."""
    return json.dumps(job.model_dump(mode="json", include={key}, exclude_unset=True)[key])
