"""Compiled programs that a run brings to its hosts: where `launch plan --keep` puts them."""

from pathlib import Path

IN_RUN = "programs"
"""Folder of a run's folder; it exists if the run was started with programs."""
PATTERN = "programs/*-{process:04d}.bundle"
"""Files in the run's folder that a process may read, whatever the number of hosts."""


def store_of(run_dir: Path) -> Path:
    """Returns the folder in which `launch plan` keeps the programs of runs of this name."""
    return run_dir.parent / ".programs" / run_dir.name


def file_name(processes: int, process: int) -> str:
    """Returns the name of the file with the programs of one process of a world."""
    return f"{processes:04d}-{process:04d}.bundle"
