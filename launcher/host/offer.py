"""A standby program that one process of this machine offers to another, which takes it over.

The process that holds a program's pipes owns it. The new owner opens them through /proc, and the
old one closes its own; the program notices nothing.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Self

from trainer.contract.protocol.start import Start


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
    """The command of the program; only its beginning when it has started before its run."""
    environment: Mapping[str, str]
    """The environment in which it waits."""

    def can_become(self, command: Sequence[str]) -> bool:
        """Returns whether the program runs the beginning of `command`, or all of it."""
        return list(command[: len(self.command)]) == list(self.command)

    def assign(self, command: Sequence[str], environment: Mapping[str, str], cwd: str) -> Self:
        """Gives a program that has started before its run the rest of its command.

        Returns the offer of what it then is: it works on the run's checks, and waits for its start.
        Raises OSError when the program or its owner has ended.
        """
        rest = command[len(self.command) :]
        pipe = self.open_writing(self.start)
        try:
            os.write(pipe, Start.of(self.environment, environment, rest, cwd).encode())
        finally:
            os.close(pipe)
        return replace(self, command=command, environment=environment)

    def open_reading(self, descriptor: int) -> int:
        """Returns the reading end of a pipe, non-blocking. Raises OSError without its owner."""
        return os.open(self._path(descriptor), os.O_RDONLY | os.O_NONBLOCK)

    def open_writing(self, descriptor: int) -> int:
        """Returns the writing end of a pipe. Raises OSError without its owner."""
        return os.open(self._path(descriptor), os.O_WRONLY)

    def _path(self, descriptor: int) -> str:
        return f"/proc/{self.owner}/fd/{descriptor}"
