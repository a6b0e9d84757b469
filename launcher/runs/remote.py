"""A run whose folder is on another machine, as this machine remembers it."""

import hashlib
import json
import socket
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ValidationError, computed_field

from launcher.cluster.schema import ClusterRef
from launcher.core.files import read_object, replace_file
from launcher.runs.directory import REMOTE
from launcher.runs.records import RunRecord

NOT_FETCHED = ("checkpoints", ".*")
"""What is of use there only."""


class RemoteRunHandle(RunRecord, ABC):
    """Beside the run's copy here."""

    FILE: ClassVar = REMOTE

    name: str
    runs: str
    """There: what holds the run's folder."""
    words: ClusterRef
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
    def fetch(self, folder: Path) -> None:
        """Copy what is shown of it (see fetched_files.py): from now on it is a run of here.

        Raises ProviderError where it cannot be had.
        """

    def localize(self, folder: Path) -> None:
        """Makes the copy in a folder a run of this machine.

        The cluster and the folder of relative paths are those that this machine has recorded.
        """
        localize_copy(folder, self.words, self.launched_in)


def localize_copy(folder: Path, words: ClusterRef, launched_in: str) -> None:
    """See `RemoteRunHandle.localize`."""
    here = {"cluster": words.model_dump(), "launched_in": launched_in}
    state = _CopiedState.of(read_object(folder / "state.json"))
    replace_file(folder / "state.json", json.dumps({**state, **here}))
    (folder / REMOTE).unlink(missing_ok=True)


class _CopiedState(BaseModel):
    """The fields of state.json that describe the run itself."""

    state: str
    time: float | None = None
    reason: str | None = None
    attempt: int | None = None
    step: int | None = None
    steps: int | None = None
    checkpoint: int | None = None
    grace_s: float | None = None

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Empty where a field has another type."""
        try:
            return cls.model_validate(given).model_dump(exclude_unset=True)
        except ValidationError:
            return {}


def runs_below(base: str, folder: Path) -> str:
    """There, for a run that is to have its copy in `folder`: other folders' have other places."""
    here = f"{socket.gethostname()}:{folder.parent}"
    return f"{base}/runs/{hashlib.sha256(here.encode()).hexdigest()[:8]}/runs"
