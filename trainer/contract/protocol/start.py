"""The start of a standby process: one line on a pipe, with what has changed in its environment.

A standby process has started before its attempt. It has the environment of the time when it
started; the coordinator, for example, has another address now. One that has started before its run,
too, first receives a line with the run's arguments and working directory.
"""

import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True)
class Start:
    """One line for a standby process."""

    changes: Mapping[str, str | None]
    """Variables with other values than at its start; null removes a variable."""
    arguments: Sequence[str] | None = None
    """Arguments of `python -m trainer`, for a process that has none yet."""
    cwd: str | None = None
    """The working directory, for a process that has no arguments yet."""

    @classmethod
    def of(
        cls,
        before: Mapping[str, str],
        now: Mapping[str, str],
        arguments: Sequence[str] | None = None,
        cwd: str | None = None,
    ) -> Self:
        """Returns the line that turns the environment `before` into `now`."""
        changes = {
            name: now.get(name)
            for name in sorted(before.keys() | now.keys())
            if before.get(name) != now.get(name)
        }
        return cls(changes, arguments, cwd)

    def encode(self) -> bytes:
        """Returns the line, with its newline."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Self:
        """Reads a line that `encode` made."""
        return cls(**json.loads(line))

    def apply(self, environment: MutableMapping[str, str]) -> None:
        """Makes the changes in `environment`."""
        for name, value in self.changes.items():
            if value is None:
                environment.pop(name, None)
            else:
                environment[name] = value
