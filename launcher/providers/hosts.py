"""What every provider gives: hosts that wait in a Ray cluster, and its address."""

from dataclasses import dataclass
from pathlib import Path

from launcher.processes import Reaped


class ProviderError(Exception):
    """Hosts could not be had, or were lost; says why and what to do."""


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
