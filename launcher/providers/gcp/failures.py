"""Failures while slices are held: how long they last, and where other commands find the reason."""

import json
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from launcher.core.files import read_object, replace_file

TROUBLE = "trouble.json"


class Failures:
    """Failures without a success between them."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """After a success."""
        self._count, self._since = 0, 0.0

    def add(self) -> int:
        """Count one more; returns how many there are."""
        if not self._count:
            self._since = time.monotonic()
        self._count += 1
        return self._count

    def lasting_s(self) -> float:
        """Count one more; returns the seconds since the first."""
        self.add()
        return time.monotonic() - self._since


@dataclass(frozen=True)
class Report:
    """The trouble of a pod, as its keeper wrote it down."""

    since: float
    reason: str


class Trouble:
    """What keeps a pod's keeper from its work, in the pod's folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / TROUBLE
        self._since: float | None = None

    def add(self, reason: str) -> None:
        """Write it down, as far as the disk allows."""
        self._since = self._since or time.time()
        with suppress(OSError):
            replace_file(self._path, json.dumps({"since": self._since, "reason": reason}))

    def clear(self) -> None:
        """There is none any more."""
        self._since = None
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def trouble_of(folder: Path) -> Report | None:
    """None: there is none."""
    found = read_object(folder / TROUBLE)
    since, reason = found.get("since"), found.get("reason")
    if not isinstance(since, int | float) or not isinstance(reason, str):
        return None
    return Report(since, reason)
