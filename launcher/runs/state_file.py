"""state.json: the state of a run, as the process that runs it has recorded it."""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import BeforeValidator

from launcher.cluster.schema import ClusterRef
from launcher.core.files import read_object, replace_file
from launcher.core.messages import from_wire, to_wire
from launcher.core.states import RunState
from launcher.runs.records import RunRecordError

_STATES = frozenset(map(str, RunState))


def _known(state: object) -> object:
    return RunState.UNKNOWN if isinstance(state, str) and state not in _STATES else state


KnownState = Annotated[RunState, BeforeValidator(_known)]
"""A state; UNKNOWN for one that only another version of Slipway has."""


@dataclass(frozen=True)
class Position:
    """The progress of a run."""

    step: int | None = None
    """Last reported step."""
    checkpoint: int | None = None
    """Step of the last checkpoint."""


@dataclass(frozen=True, kw_only=True)
class RecordedState:
    """The contents of state.json. Fields are None when they are unknown.

    A run that was started by hand has no such file, and no state.
    """

    FILE: ClassVar = "state.json"

    state: KnownState | None = None
    reason: str | None = None
    """Why the run is in this state."""
    time: float | None = None
    """When the state was recorded, in seconds since the epoch."""
    pid: int | None = None
    """The process that recorded it."""
    start_time: int | None = None
    """When that process started, in ticks since boot."""
    step: int | None = None
    """See `Position`."""
    checkpoint: int | None = None
    attempt: int | None = None
    """Number of the last attempt."""
    cluster: ClusterRef | None = None
    """Cluster reference of the last attempt's command."""
    hosts: int | None = None
    """Number of hosts of the last attempt."""
    steps: int | None = None
    """Number of steps of the whole run; None for a command."""
    grace_s: float | None = None
    """Seconds that the program has to save when it is stopped."""
    launched_in: str | None = None
    """Folder that the run's relative paths start from."""

    @classmethod
    def read(cls, folder: Path) -> Self:
        """Returns the state of the run in a folder; an empty one without a JSON object.

        Raises RunRecordError when a field is wrong.
        """
        path = folder / cls.FILE
        return from_wire(cls, read_object(path), str(path), RunRecordError)

    @classmethod
    def read_valid(cls, folder: Path) -> Self:
        """Returns the state of the run in a folder; an empty one when a field is wrong."""
        try:
            return cls.read(folder)
        except RunRecordError:
            return cls()

    def write(self, folder: Path) -> None:
        """Writes the known fields, in place of a previous state."""
        known = {name: value for name, value in to_wire(self).items() if value is not None}
        replace_file(folder / self.FILE, json.dumps(known))

    @property
    def of_attempt(self) -> Self:
        """The fields that describe the attempt, which are the same in every state of it."""
        return replace(
            self, state=None, reason=None, time=None, pid=None, start_time=None, step=None,
            checkpoint=None,
        )  # fmt: skip

    @property
    def position(self) -> Position:
        return Position(self.step, self.checkpoint)
