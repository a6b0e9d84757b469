"""The environment of a job: the part that `sbatch` copies, and the secrets.

`sbatch` copies its environment to a file on the controller's disk. Secrets are not part of it. The
job reads the secrets that it names from a file in the run's folder that only its user can read.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from launcher.core.files import read_object

FILE = ".slurm-secrets.json"
SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|KEY|KEY_ID)$", re.I)
"""Pattern for the end of a variable's name that marks its value as a secret."""


def without_secrets(secrets: Mapping[str, str]) -> dict[str, str]:
    """Returns this process's environment for `sbatch`, without secrets."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in secrets and not SECRET.search(name)
    }


def write(folder: Path, secrets: Mapping[str, str]) -> None:
    """Stores a job's secrets until the run is over."""
    forget(folder)
    if not secrets:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(folder / FILE, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(dict(secrets), file)


def read(folder: Path) -> dict[str, str]:
    """Returns the job's secrets; empty when it has none."""
    return read_object(folder / FILE)


def forget(folder: Path) -> None:
    """Deletes the stored secrets."""
    (folder / FILE).unlink(missing_ok=True)
