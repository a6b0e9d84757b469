"""What every provider gives: hosts that wait in a Ray cluster, and its address."""

from dataclasses import dataclass
from pathlib import Path

from launcher.processes import Reaped
from launcher.providers.errors import ProviderError
from launcher.providers.nodes import Nodes
from launcher.providers.simulated import Place, place
from trainer.spec.plan import World


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

    @property
    def is_headless(self) -> bool:
        """Whether the head is known to be gone: calls into Ray would then wait for it."""
        return self.nodes is not None and self.nodes.is_headless

    def places(self, world: World) -> list[Place] | None:
        """Of the hosts of a world that are alive; None: Ray is to be asked."""
        return None if self.nodes is None else [place(world, p) for p in self.nodes.alive()]

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
