"""Failures while slices are held: their duration, and a file with the reason."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.core.files import read_object, replace_file

TROUBLE = "trouble.json"


class Failures:
    """A series of failures without a success in between."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Resets the series after a success."""
        self._count, self._since = 0, 0.0

    def add(self) -> int:
        """Counts one more failure and returns their number."""
        if not self._count:
            self._since = time.monotonic()
        self._count += 1
        return self._count

    def lasting_s(self) -> float:
        """Counts one more failure and returns the seconds since the first."""
        self.add()
        return time.monotonic() - self._since


@dataclass(frozen=True)
class Report:
    """A problem with held slices, as recorded by their keeper."""

    since: float
    reason: str


class Trouble:
    """The problem that blocks the keeper of slices, recorded in their folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TROUBLE
        self._since: float | None = None

    def add(self, reason: str) -> None:
        """Records the problem; ignores errors of the disk."""
        self._since = self._since or time.time()
        with suppress(OSError):
            replace_file(self._path, json.dumps({"since": self._since, "reason": reason}))

    def clear(self) -> None:
        """Removes the record once the problem is solved."""
        self._since = None
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def trouble_of(folder: Path) -> Report | None:
    """Returns the recorded problem. Returns None when there is none."""
    found = read_object(folder / TROUBLE)
    since, reason = found.get("since"), found.get("reason")
    if not isinstance(since, int | float) or not isinstance(reason, str):
        return None
    return Report(since, reason)
