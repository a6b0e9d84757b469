"""What every provider gives: hosts that wait in a Ray cluster, and its address."""

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
"""A host that was cut off: until then Ray has noticed that too, or it is back."""
AVOIDED_S = 600.0
"""A host that was lost or could not be reserved: others are taken rather than it."""


@dataclass
class ExternalCluster:
    """Of a cluster that is not Slipway's own: how one is let in, and which nodes may be hosts."""

    ray_variables: Mapping[str, str] = field(repr=False)
    """May hold the token."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """That a node must have."""
    _numbers: dict[str, int] = field(default_factory=dict)

    def number(self, node_id: str, labels: Mapping[str, str]) -> int | None:
        """Of a node: its label's, else counted as they are first seen; None: it is no host."""
        if not self.labels.items() <= labels.items():
            return None
        if HOST_LABEL in labels:
            return int(labels[HOST_LABEL])
        return self._numbers.setdefault(node_id, len(self._numbers))


@dataclass
class HostCluster:
    """A running Ray cluster with one node per host; as a context manager it ends it on the way out.

    `reaped` is None where the cluster outlives this process (kept warm, or not ours).
    """

    address: str
    """Of the cluster's head, "ip:port"."""
    driver_ip: str
    """The node of this process: the head's, or any on this machine."""
    token_path: Path | None
    """None: `shared` says how one is let in."""
    folder: Path | None = None
    """The logs of Ray's processes lie below it; None: this machine does not have them."""
    reaped: ProcessTree | None = None
    nodes: Nodes | None = None
    """The Ray nodes, where they are processes of ours on this machine."""
    shared: ExternalCluster | None = None
    """None: the cluster is Slipway's own."""
    _suspects: dict[HostSlot, float] = field(default_factory=dict)
    _avoided: dict[HostSlot, float] = field(default_factory=dict)
    _head: HeadWatch = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._head = HeadWatch(self.address)

    @property
    def head_is_down(self) -> bool:
        """Whether the head is known to be gone: calls into Ray would then wait for it."""
        return self._head.is_gone if self.nodes is None else self.nodes.head_is_down

    @property
    def ray_variables(self) -> dict[str, str]:
        """What Ray's environment must hold for this process to be let in."""
        if self.shared is not None:
            return dict(self.shared.ray_variables)
        return {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(self.token_path)}

    def call_ray(self, what: str, limit_s: float, call: Callable[[], T]) -> T:
        """`call` into their Ray; raises ProviderError after `limit_s`, or once the head is gone."""
        return bounded(what, limit_s, call, lambda: self.head_is_down)

    def number(self, node_id: str, labels: Mapping[str, str]) -> int | None:
        """Of a node without a place in a slice: which host it is; None: it is none."""
        if self.shared is not None:
            return self.shared.number(node_id, labels)
        return int(labels[HOST_LABEL]) if HOST_LABEL in labels else None

    @property
    def avoided(self) -> set[HostSlot]:
        """Hosts that are taken only where there are no others."""
        now = time.monotonic()
        self._avoided = {place: end for place, end in self._avoided.items() if now < end}
        return set(self._avoided)

    def deprioritize(self, places: Collection[HostSlot]) -> None:
        """Hosts there were lost, or could not be had."""
        self._avoided.update(dict.fromkeys(places, time.monotonic() + AVOIDED_S))

    def quarantine(self, places: Collection[HostSlot]) -> None:
        """Hosts there do not answer any more."""
        self._suspects.update(dict.fromkeys(places, time.monotonic() + SUSPECTED_S))

    def usable_slots(self, world: World, seen: Collection[HostSlot]) -> set[HostSlot]:
        """Of a world's hosts that Ray holds for alive, those that nothing else speaks against."""
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
        """End what this object owns, and wait until it is gone."""
        if self.reaped is not None and not self.reaped.close():
            raise ProviderError(
                f"some processes of the cluster at {self.address} could not be ended; "
                f"their reaper is process {self.reaped.pid}"
            )
