"""What every provider gives: hosts that wait in a Ray cluster, and its address."""

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path

from launcher.host.processes import Reaped
from launcher.providers.errors import ProviderError
from launcher.providers.nodes import Nodes
from launcher.providers.simulated import Place, place
from trainer.spec.plan import World

SUSPECTED_S = 30.0
"""A host that was cut off: until then Ray has noticed that too, or it is back."""


@dataclass
class Hosts:
    """A running Ray cluster with one node per host; as a context manager it ends it on the way out.

    `reaped` is None where the cluster outlives this process (kept warm, or not ours).
    """

    address: str
    """Of the cluster's head, "ip:port"."""
    driver_ip: str
    """The node of this process: the head's."""
    token_path: Path
    folder: Path | None = None
    """The logs of Ray's processes lie below it; None: this machine does not have them."""
    reaped: Reaped | None = None
    nodes: Nodes | None = None
    """The Ray nodes, where they are processes of ours on this machine."""
    _suspects: dict[Place, float] = field(default_factory=dict)

    @property
    def is_headless(self) -> bool:
        """Whether the head is known to be gone: calls into Ray would then wait for it."""
        return self.nodes is not None and self.nodes.is_headless

    def suspect(self, places: Collection[Place]) -> None:
        """Hosts there do not answer any more."""
        self._suspects.update(dict.fromkeys(places, time.monotonic() + SUSPECTED_S))

    def alive(self, world: World, seen: Collection[Place]) -> set[Place]:
        """Of a world's hosts that Ray holds for alive, those that nothing else speaks against."""
        now = time.monotonic()
        self._suspects = {p: end for p, end in self._suspects.items() if p in seen and now < end}
        alive = set(seen) - set(self._suspects)
        if self.nodes is None:
            return alive
        return alive & {place(world, process) for process in self.nodes.alive()}

    def __enter__(self) -> "Hosts":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End what this object owns, and wait until it is gone."""
        if self.reaped is not None and not self.reaped.close():
            raise ProviderError(
                f"some processes of the cluster at {self.address} could not be ended; "
                f"their reaper is process {self.reaped.pid}"
            )
