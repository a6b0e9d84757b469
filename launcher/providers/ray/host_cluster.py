"""The result of every provider: hosts that wait in a Ray cluster, and its address."""

import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from launcher.core.errors import ProviderError
from launcher.host.process_tree import ProcessTree
from launcher.providers.ray.client import bounded
from launcher.providers.ray.head_monitor import HeadWatch
from launcher.providers.ray.node_group import Nodes
from launcher.providers.ray.node_spec import HOST_LABEL, HostSlot, place
from trainer.contract.planning.plan import World

T = TypeVar("T")

SUSPECTED_S = 30.0
"""Seconds of a quarantine: after it, Ray has noticed that the host is lost, or it is back."""
AVOIDED_S = 600.0
"""Seconds for which other hosts are preferred to one that was lost or could not be reserved."""


@dataclass
class ExternalCluster:
    """A cluster that Slipway does not own: its credentials, and the nodes that may be hosts."""

    ray_variables: Mapping[str, str] = field(repr=False)
    """Ray's environment variables; may hold the token."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have to be a host."""
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, node_id: str, labels: Mapping[str, str]) -> int | None:
        """Returns a node's number: its label, else the order in which nodes are first seen.

        Returns None when the node may not be a host.
        """
        if not self.labels.items() <= labels.items():
            return None
        if HOST_LABEL in labels:
            return int(labels[HOST_LABEL])
        return self._numbers.setdefault(node_id, len(self._numbers))


@dataclass
class HostCluster:
    """A running Ray cluster with one node per host; a context manager that ends it on exit.

    `reaped` is None when the cluster outlives this process (kept warm, or not Slipway's own).
    """

    address: str
    """Address of the cluster's head, "ip:port"."""
    driver_ip: str
    """IP address of this process's node: the head's, or that of any node on this machine."""
    token_path: Path | None
    """File with the token. None when `shared` holds the credentials."""
    folder: Path | None = None
    """Folder with the logs of Ray's processes. None when they are not on this machine."""
    reaped: ProcessTree | None = None
    nodes: Nodes | None = None
    """The Ray nodes, when they are processes that this launcher started on this machine."""
    shared: ExternalCluster | None = None
    """The cluster's credentials and labels. None when the cluster is Slipway's own."""
    _suspects: dict[HostSlot, float] = field(default_factory=dict)
    _avoided: dict[HostSlot, float] = field(default_factory=dict)
    _head: HeadWatch = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._head = HeadWatch(self.address)

    @property
    def head_is_down(self) -> bool:
        """Whether the head is known to be gone. Calls into Ray would then wait for it."""
        return self._head.is_gone if self.nodes is None else self.nodes.head_is_down

    @property
    def ray_variables(self) -> dict[str, str]:
        """Environment variables with which Ray gives this process access to the cluster."""
        if self.shared is not None:
            return dict(self.shared.ray_variables)
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_path)}

    def call_ray(self, what: str, limit_s: float, call: Callable[[], T]) -> T:
        """Returns the result of a call into Ray.

        Raises ProviderError after `limit_s`, or once the head is gone.
        """
        return bounded(what, limit_s, call, lambda: self.head_is_down)

    def number(self, node_id: str, labels: Mapping[str, str]) -> int | None:
        """Returns the host number of a node outside slices. Returns None when it is no host."""
        if self.shared is not None:
            return self.shared.number(node_id, labels)
        return int(labels[HOST_LABEL]) if HOST_LABEL in labels else None

    @property
    def avoided(self) -> set[HostSlot]:
        """Hosts that are used only when no other hosts are available."""
        now = time.monotonic()
        self._avoided = {place: end for place, end in self._avoided.items() if now < end}
        return set(self._avoided)

    def deprioritize(self, places: Collection[HostSlot]) -> None:
        """Records that hosts were lost or could not be reserved."""
        self._avoided.update(dict.fromkeys(places, time.monotonic() + AVOIDED_S))

    def quarantine(self, places: Collection[HostSlot]) -> None:
        """Records that hosts no longer answer."""
        self._suspects.update(dict.fromkeys(places, time.monotonic() + SUSPECTED_S))

    def usable_slots(self, world: World, seen: Collection[HostSlot]) -> set[HostSlot]:
        """Returns the hosts in `seen`, which Ray reports alive, that are usable.

        It leaves out quarantined hosts and those whose local node is not up.
        """
        now = time.monotonic()
        self._suspects = {p: end for p, end in self._suspects.items() if p in seen and now < end}
        alive = set(seen) - set(self._suspects)
        if self.nodes is None:
            return alive
        return alive & {place(world, process) for process in self.nodes.alive()}

    def __enter__(self) -> "HostCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Ends what this object owns, and waits until it is gone.

        Raises ProviderError when some processes cannot be ended.
        """
        if self.reaped is not None and not self.reaped.close():
            raise ProviderError(
                f"some processes of the cluster at {self.address} could not be ended; "
                f"their reaper is process {self.reaped.pid}"
            )
