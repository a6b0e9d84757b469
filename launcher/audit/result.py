"""The verdict of an audit, and its file in the folder of the run: audits/0001.json."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from launcher.audit.differences import FirstDifference
from launcher.core.errors import SlipwayError
from launcher.core.files import read_object, replace_file
from launcher.core.messages import from_wire, to_wire
from launcher.runs.records import RunRecordError

FOLDER = "audits"


class AuditKind(StrEnum):
    """The kind of a verdict."""

    EQUAL = "equal"
    """Every recorded value is reproduced, bit for bit, also on another mesh or with other versions.
    """
    ROUNDING = "rounding"
    """On another mesh or with other versions: every difference is within the tolerance."""
    CORRUPT_HOST = "corrupt_host"
    """A host of the replays computes a step wrong, again and again."""
    CORRUPT_HOSTS = "corrupt_hosts"
    """The replays disagree: one of several hosts computes a step wrong."""
    CORRUPT_RECORD = "corrupt_record"
    """The replays agree with each other, bit for bit, and not with the run."""
    DIFFERENT = "different"
    """On another mesh or with other versions: a difference that rounding does not explain."""


@dataclass(frozen=True, kw_only=True)
class AuditResult:
    """The verdict on steps of a run."""

    run: str
    time: float
    """Start of the audit, in seconds since the epoch."""
    first_step: int
    last_step: int
    start_step: int
    """Step of the checkpoint that the replays start from; 0 for the initial weights."""
    checkpoints: tuple[int, ...]
    """Checkpoints among these steps, at which every bit of the state is compared."""
    cluster: str
    mesh: Mapping[str, int]
    """Mesh of the replays."""
    changes: tuple[str, ...]
    """What differs between the program of the run and that of the replays; empty: nothing."""
    run_versions: Mapping[str, str]
    """Version of Python and of each package that made the run; several are joined by "and"."""
    replay_versions: Mapping[str, str]
    """Version of Python and of each package that replayed it."""
    hosts: int
    """Number of hosts of the replays."""
    moved: bool
    """Whether each host has done the work of another host."""
    replays: int
    kind: AuditKind
    text: str
    """The verdict in one sentence."""
    difference: FirstDifference | None = None
    """Where the replay first differs; null when it does not."""
    suspects: tuple[int, ...] = ()
    """The host that computes it wrong, by its number; or the two of a world of two hosts."""
    largest_relative_difference: float | None = None
    """Largest one of losses and norms of gradients; null when they are compared bit for bit."""
    tolerance: float | None = None
    """Relative difference that rounding explains at the last step; null likewise."""

    @property
    def is_good(self) -> bool:
        """Whether nothing is wrong."""
        return self.kind in (AuditKind.EQUAL, AuditKind.ROUNDING)


def write(result: AuditResult, run: Path) -> Path:
    """Writes a verdict beside the earlier ones of a run; returns the file."""
    folder = run / FOLDER
    folder.mkdir(exist_ok=True)
    taken = [int(path.stem) for path in folder.glob("*.json") if path.stem.isdecimal()]
    path = folder / f"{max(taken, default=0) + 1:04d}.json"
    replace_file(path, json.dumps(to_wire(result), indent=2))
    return path


def read_all(run: Path) -> list[AuditResult]:
    """Returns the verdicts on a run, the newest first; those that cannot be read are left out."""
    return [one for path in sorted((run / FOLDER).glob("*.json"))[::-1] if (one := _read(path))]


def _read(path: Path) -> AuditResult | None:
    try:
        return from_wire(AuditResult, read_object(path), str(path), RunRecordError)
    except SlipwayError:
        return None
