"""Finds the handle of a run by the records in its directory."""

from pathlib import Path

from launcher.executors.handle import RunHandle
from launcher.executors.local_run import LocalRunHandle
from launcher.executors.remote_run import RemoteRunHandle, locate
from launcher.executors.slurm_run import SlurmRunHandle
from launcher.runs.slurm_job import SlurmJob


def handle_of(folder: Path) -> RunHandle:
    """Returns the handle of the run in a directory.

    A remote run that has ended is first copied here. Raises RunFolderError when its host does not
    answer.
    """
    if record := locate(folder):
        return RemoteRunHandle(folder, record)
    kind = SlurmRunHandle if (folder / SlurmJob.FILE).exists() else LocalRunHandle
    return kind(folder)
