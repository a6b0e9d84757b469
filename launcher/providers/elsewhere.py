"""A run whose folder is on another machine, as this machine remembers it."""

import hashlib
import json
import socket
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from pydantic import computed_field

from launcher.cluster import ClusterWords
from launcher.files import read_object, replace_file
from launcher.providers.note import Note
from launcher.runs import REMOTE

LEFT_THERE = ("checkpoints", ".*")
"""What is of use there only."""


class Elsewhere(Note, ABC):
    """Beside the run's copy here."""

    FILE: ClassVar = REMOTE

    name: str
    runs: str
    """There: what holds the run's folder."""
    words: ClusterWords
    """What the cluster was asked for with, here."""
    launched_in: str
    """The folder that the command was typed in, here."""

    @computed_field
    @property
    @abstractmethod
    def head_name(self) -> str:
        """For those who read the file without this class."""

    @abstractmethod
    def launch(self, verb: str, *words: str, terminal: bool) -> int:
        """A command of `launch` about this run, there; returns its exit code."""

    @abstractmethod
    def is_over(self) -> bool:
        """Whether nobody runs it any more. Raises ProviderError where that cannot be asked."""

    @abstractmethod
    def bring_home(self, folder: Path) -> None:
        """Copy it here, all but its checkpoints: from now on it is a run of here.

        Raises ProviderError where it cannot be had.
        """

    def settle(self, folder: Path) -> None:
        """What was copied into a folder is a run of here."""
        here = {"cluster": self.words.model_dump(), "launched_in": self.launched_in}
        state = read_object(folder / "state.json")
        replace_file(folder / "state.json", json.dumps({**state, **here}))
        (folder / REMOTE).unlink(missing_ok=True)


def runs_below(base: str, folder: Path) -> str:
    """There, for a run that is to have its copy in `folder`: other folders' have other places."""
    here = f"{socket.gethostname()}:{folder.parent}"
    return f"{base}/runs/{hashlib.sha256(here.encode()).hexdigest()[:8]}/runs"
