"""The result of every provider: hosts that wait in a Ray cluster, and its address."""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Self, TypeVar

from launcher.core.errors import HostError
from launcher.host.process_tree import ProcessTree
from launcher.providers.ray.client import bounded
from launcher.providers.ray.head_monitor import HeadMonitor
from launcher.providers.ray.node_group import Nodes
from launcher.providers.ray.node_spec import HOST_LABEL, HostSlot, place
from launcher.providers.ray.workspace import token_variables
from trainer.contract.planning.plan import World

T = TypeVar("T")

LEAVE_TIMEOUT_S = 45.0
SUSPECTED_S = 30.0
"""Seconds of a quarantine: after it, Ray has noticed that the node is gone, or it is back."""
AVOIDED_S = 600.0
"""Seconds for which other hosts are preferred to one that was lost or could not be reserved."""


@dataclass
class HostCluster(ABC):
    """A running Ray cluster with one node per host; a context manager that closes it on exit."""

    is_external: ClassVar[bool] = False
    """Whether a party other than Slipway runs the cluster, so that its hosts may hold other code
    and its nodes may not be hosts."""
    is_on_this_machine: ClassVar[bool] = False
    """Whether all hosts are known to be this machine and thus to share its files."""
    is_shared: ClassVar[bool] = True
    """Whether other runs may use the hosts that this one does not hold."""

    address: str
    """Address of the cluster's head, "ip:port"."""
    driver_ip: str
    """IP address of this process's node: the head's, or that of any node on this machine."""
    folder: Path | None = field(default=None, kw_only=True)
    """Folder with the logs of Ray's processes. None when they are not on this machine."""
    _suspects: dict[str, float] = field(default_factory=dict, init=False)
    _avoided: dict[HostSlot, float] = field(default_factory=dict, init=False)
    _head: HeadMonitor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._head = HeadMonitor(self.address)

    @property
    @abstractmethod
    def ray_variables(self) -> dict[str, str]:
        """Environment variables with which Ray gives this process access to the cluster."""

    @property
    def head_is_down(self) -> bool:
        """Whether the head is known to be gone. Calls into Ray would then wait for it."""
        return self._head.is_gone

    @property
    def required_labels(self) -> Mapping[str, str]:
        """Labels that a node must have to be a host."""
        return {}

    def call_ray(self, what: str, limit_s: float, call: Callable[[], T]) -> T:
        """Returns the result of a call into Ray.

        Raises HostError after `limit_s`, or once the head is gone.
        """
        return bounded(what, limit_s, call, lambda: self.head_is_down)

    def leave(self, call: Callable[[], None]) -> None:
        """Runs `call`, which releases something. If Ray is stuck or gone, the end of this process
        releases it instead.
        """
        if not self.head_is_down:
            with suppress(HostError):
                self.call_ray("leaving", LEAVE_TIMEOUT_S, call)

    def number(self, node_id: str, labels: Mapping[str, str]) -> int | None:
        """Returns the host number of a node outside slices. Returns None when it is no host."""
        del node_id
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

    def quarantine(self, nodes: Collection[str], seconds: float = SUSPECTED_S) -> None:
        """Records ids of nodes that are lost or unfit, which Ray may report as alive."""
        self._suspects.update(dict.fromkeys(nodes, time.monotonic() + seconds))

    def is_quarantined(self, node: str) -> bool:
        """Returns whether a node is in quarantine. Its replacement has another id."""
        return time.monotonic() < self._suspects.get(node, 0.0)

    def usable_slots(self, world: World, seen: Collection[HostSlot]) -> set[HostSlot]:
        """Returns the hosts in `seen`, which Ray reports alive, whose nodes are known to be up."""
        del world
        return set(seen)

    def replace_lost(self, now_s: float) -> None:  # noqa: B027 - only owned nodes can be replaced
        """Starts the replacements of lost hosts that are due."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:  # noqa: B027 - a cluster that this object does not own stays up
        """Ends what this object owns, and waits until it is gone."""


@dataclass
class OwnedCluster(HostCluster):
    """A cluster whose Ray nodes are processes of this machine that end with this object."""

    is_on_this_machine: ClassVar[bool] = True
    is_shared: ClassVar[bool] = False

    token_path: Path
    reaped: ProcessTree
    """Reaper of all Ray nodes."""
    nodes: Nodes

    @property
    def ray_variables(self) -> dict[str, str]:
        return token_variables(self.token_path)

    @property
    def head_is_down(self) -> bool:
        return self.nodes.head_is_down

    def usable_slots(self, world: World, seen: Collection[HostSlot]) -> set[HostSlot]:
        up = {place(world, process) for process in self.nodes.alive()}
        return super().usable_slots(world, seen) & up

    def replace_lost(self, now_s: float) -> None:
        self.nodes.replace_lost(now_s)

    def close(self) -> None:
        """Ends all nodes. Raises HostError when some processes cannot be ended."""
        if not self.reaped.close():
            raise HostError(
                f"some processes of the cluster at {self.address} could not be ended; "
                f"their reaper is process {self.reaped.pid}"
            )


@dataclass
class WarmCluster(HostCluster):
    """A cluster of Slipway that other processes keep up and end.

    `launch up`, the tasks of a Slurm job, and the daemons on SSH hosts start such clusters.
    """

    token_path: Path

    @property
    def ray_variables(self) -> dict[str, str]:
        return token_variables(self.token_path)


@dataclass
class ExternalCluster(HostCluster):
    """A cluster that Slipway does not run: Ray of the user's, or of KubeRay."""

    is_external: ClassVar[bool] = True

    variables: Mapping[str, str] = field(repr=False)
    """Ray's environment variables; may hold the token."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that a node must have to be a host."""
    _numbers: dict[str, int] = field(default_factory=dict, init=False)

    @property
    def ray_variables(self) -> dict[str, str]:
        return dict(self.variables)

    @property
    def required_labels(self) -> Mapping[str, str]:
        return self.labels

    def number(self, node_id: str, labels: Mapping[str, str]) -> int | None:
        """Returns a node's number: its label, else the order in which nodes are first seen.

        Returns None when the node may not be a host.
        """
        if not self.labels.items() <= labels.items():
            return None
        labeled = super().number(node_id, labels)
        return self._numbers.setdefault(node_id, len(self._numbers)) if labeled is None else labeled
