"""The secrets of a job, in a file in the run's folder that only its user can read.

`sbatch` copies its environment to a file on the controller's disk, so secrets are not part of it.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from launcher.core.files import read_object

FILE = ".slurm-secrets.json"


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
