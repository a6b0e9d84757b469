"""A standby program that one process of this machine offers to another, which takes it over.

The process that holds a program's pipes owns it. The new owner opens them through /proc, and the
old one closes its own; the program notices nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Offer:
    """The pipes of a program, by the descriptors of the process that offers it."""

    owner: int
    """Process id of the process that offers it."""
    lifeline: int
    answers: int
    """Pipes to and from the program's reaper."""
    events: int
    start: int
    """Pipes from and to the program."""
    command: Sequence[str]
    """The command of the program; without the rest of it when it has started before its run."""
    environment: Mapping[str, str]
    """The environment in which it waits."""

    def missing_of(self, command: Sequence[str]) -> list[str] | None:
        """Returns the words of `command` that the program does not have yet.

        Returns None when it runs another command.
        """
        count = len(self.command)
        return list(command[count:]) if list(command[:count]) == list(self.command) else None

    def open_reading(self, descriptor: int) -> int:
        """Returns the reading end of a pipe, non-blocking. Raises OSError without its owner."""
        return os.open(self._path(descriptor), os.O_RDONLY | os.O_NONBLOCK)

    def open_writing(self, descriptor: int) -> int:
        """Returns the writing end of a pipe. Raises OSError without its owner."""
        return os.open(self._path(descriptor), os.O_WRONLY)

    def _path(self, descriptor: int) -> str:
        return f"/proc/{self.owner}/fd/{descriptor}"
