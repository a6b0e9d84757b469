"""A run whose folder is on another machine, as recorded on this machine."""

import hashlib
import socket
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from pydantic import computed_field

from launcher.cluster.schema import ClusterRef
from launcher.runs.folder import REMOTE
from launcher.runs.records import RunRecord
from launcher.runs.state_file import RecordedState

NOT_FETCHED = ("checkpoints", ".*")
"""Files that are only of use on the remote machine."""


class RemoteRunRecord(RunRecord, ABC):
    """The record of a remote run, stored beside the run's local copy."""

    FILE: ClassVar = REMOTE

    name: str
    runs: str
    """Folder on the remote machine that contains the run's folder."""
    cluster_ref: ClusterRef
    """Cluster reference of the command on this machine."""
    launched_in: str
    """Working directory of the command on this machine."""

    @computed_field
    @property
    @abstractmethod
    def head_name(self) -> str:
        """Name of the head, for programs that read the file without this class."""

    @abstractmethod
    def launch(self, verb: str, *args: str, terminal: bool) -> int:
        """Runs a `launch` command for this run on the remote machine; returns its exit code."""

    @abstractmethod
    def lines(self, verb: str, *args: str) -> Iterator[str]:
        """Runs a `launch` command for this run on the remote machine; yields its output lines.

        Raises HostError when the remote machine does not answer.
        """

    @abstractmethod
    def is_over(self) -> bool:
        """Returns whether no process runs the run. Raises HostError when that is unknown."""

    @abstractmethod
    def fetch(self, folder: Path) -> None:
        """Copies the displayed files (see fetched_files.py), and makes the copy a local run.

        Raises HostError when that fails.
        """

    def localize(self, folder: Path) -> None:
        """Makes the copy in a folder a run of this machine.

        The cluster and the base folder of relative paths are those that this machine has recorded.
        """
        localize_copy(folder, self.cluster_ref, self.launched_in)


def localize_copy(folder: Path, cluster_ref: ClusterRef, launched_in: str) -> None:
    """Makes a copy a local run, see `RemoteRunRecord.localize`."""
    local = replace(
        RecordedState.read_valid(folder),
        pid=None,
        start_time=None,
        cluster=cluster_ref,
        launched_in=launched_in,
    )
    local.write(folder)
    (folder / REMOTE).unlink(missing_ok=True)


def runs_below(base: str, folder: Path) -> str:
    """Returns the remote parent folder of a run whose copy is in `folder`.

    Each machine and each local parent folder has its own.
    """
    here = f"{socket.gethostname()}:{folder.parent}"
    return f"{base}/runs/{hashlib.sha256(here.encode()).hexdigest()[:8]}/runs"
