"""Asks the user before a resumed run gets variables that no launch on this machine has named."""

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.prompt import Confirm

from launcher.runs import registry
from launcher.runs.directory import resume_command
from trainer.contract.config.job import BaseJob
from trainer.contract.config.loader import ConfigError
from trainer.contract.protocol.environment import SLURM_JOB


def confirm(job: BaseJob, folder: Path, overrides: Sequence[str]) -> None:
    """Raises ConfigError for new names, unless the user confirms them on a terminal.

    Names in an override of this command need no confirmation. In a Slurm job, the names were
    confirmed when it was submitted.
    """
    if SLURM_JOB in os.environ or any(
        one.partition("=")[0].strip() == "secrets" for one in overrides
    ):
        return
    new = [name for name in job.secrets if name not in registry.secrets_of(folder)]
    if not new:
        return
    problem = (
        f"{folder / 'job.yaml'}: secrets: {', '.join(new)}: no launch from this machine named "
        f"{'it' if len(new) == 1 else 'them'} for this run"
    )
    if sys.stdin.isatty():
        errors = Console(stderr=True)
        errors.print(problem, style="bold yellow", markup=False, highlight=False, soft_wrap=True)
        if Confirm.ask("send the values to the hosts?", console=errors, default=False):
            return
    named = f"secrets={json.dumps(list(job.secrets))}"
    raise ConfigError(
        [f"{problem}. To send the values to its hosts: {resume_command(folder)} '{named}'"]
    )
