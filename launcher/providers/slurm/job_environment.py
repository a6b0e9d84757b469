"""What of this command's environment a job gets, and how: Slurm's controller keeps it in a file.

`sbatch` copies the environment that it is called with to the controller's disk. Secrets are not in
it: the job reads those that it names from a file of the run's folder that only its user can read.
"""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path

from launcher.core.files import read_object

FILE = ".slurm-secrets.json"
SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|PASSWD|KEY|KEY_ID)$", re.I)
"""At the end of a variable's name: its value is taken for a secret."""


def without_secrets(secrets: Mapping[str, str]) -> dict[str, str]:
    """This process's environment, for `sbatch`."""
    return {
        name: value
        for name, value in os.environ.items()
        if name not in secrets and not SECRET.search(name)
    }


def write(folder: Path, secrets: Mapping[str, str]) -> None:
    """Keep a job's secrets until the run is over."""
    forget(folder)
    if not secrets:
        return
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
    with os.fdopen(os.open(folder / FILE, flags, 0o600), "w", encoding="utf-8") as file:
        json.dump(dict(secrets), file)


def read(folder: Path) -> dict[str, str]:
    """Empty where the job has none."""
    return read_object(folder / FILE)


def forget(folder: Path) -> None:
    """Delete them."""
    (folder / FILE).unlink(missing_ok=True)
