"""The entries of a queue, and their order."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Entry:
    """A run that a queue has to start, or that it has started and that has not ended.

    Where the run is, its folder records: an entry only has what the folder does not know.
    """

    folder: Path
    """The run's folder."""
    priority: int
    is_preemptible: bool
    """Whether the run gives its place to one with a higher priority."""
    grace_s: float
    """Seconds that the run has to save when it is stopped."""
    entered: float
    """When the entry was added, in seconds since the epoch. No other entry has the same time."""
    sizes: tuple[int, ...] = ()
    """Numbers of hosts that the run fits on, ascending; the last one is the whole cluster. Empty
    for a run that shares the cluster with no other one."""
    is_elastic: bool = False
    """Whether the run can save and go on with another number of hosts while it runs."""
    is_started: bool = False
    """Whether the queue has chosen the run; it starts it, or has done so."""
    hosts: int | None = None
    """Number of hosts that a started run may use; None for all of them."""
    stop_requested: float | None = None
    """When the run was requested to save and stop for another one, in seconds since the epoch."""

    @property
    def rank(self) -> tuple[int, float]:
        """Sorts entries: the highest priority first, then the earliest."""
        return -self.priority, self.entered


def waiting(entries: Iterable[Entry]) -> list[Entry]:
    """Returns the entries that are not started, the next one first."""
    return sorted((entry for entry in entries if not entry.is_started), key=lambda e: e.rank)
