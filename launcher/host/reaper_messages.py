"""The answers of `launcher/host/reaper.py`, which uses the standard library only, to its owner."""

from dataclasses import dataclass
from typing import ClassVar

from launcher.core.messages import Message


@dataclass(frozen=True)
class Ready(Message):
    """The reaper serves requests."""

    kind: ClassVar = "ready"
    pid: int
    """Process id of the guard."""


@dataclass(frozen=True)
class Failed(Message):
    """The reaper failed to set up or to start something."""

    kind: ClassVar = "failed"
    reason: str


@dataclass(frozen=True)
class Started(Message):
    """A command runs."""

    kind: ClassVar = "started"
    name: str
    pid: int


@dataclass(frozen=True)
class Exited(Message):
    """A command has ended."""

    kind: ClassVar = "exited"
    name: str
    status: int
    """Its wait status."""
    monotonic_s: float
    """When it ended, by CLOCK_MONOTONIC, in seconds."""


@dataclass(frozen=True)
class Killed(Message):
    """The reaper or the guard was killed."""

    kind: ClassVar = "killed"
    process: str
    """`reaper` or `guard`."""


@dataclass(frozen=True)
class LogWarning(Message):
    """A log cannot be written completely."""

    kind: ClassVar = "warning"
    text: str


Answer = Ready | Failed | Started | Exited | Killed | LogWarning
ANSWER_TYPES = (Ready, Failed, Started, Exited, Killed, LogWarning)
