"""The agents of a warm cluster that a run uses instead of starting its own."""

from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

from launcher.core.lending import Loan
from launcher.core.messages import Message
from launcher.gang.host_selection import STATE_TIMEOUT_S
from launcher.providers.ray.host_cluster import HostCluster

ANSWER_TIMEOUT_S = 5.0
"""Seconds for an agent to answer, which may have started just now. A dead one fails at once."""
SOCKET = "agents.sock"
"""Its name in the folder of the cluster."""
NAMESPACE = "slipway-waiting"
"""Ray's namespace of the agents' names."""


@dataclass(frozen=True)
class WaitingAgents(Message):
    """What a launch receives when it connects."""

    kind: ClassVar = "agents"
    names: Mapping[str, str]
    """The agent of each node, by the node's id."""


class BorrowedAgents:
    """A loan of the agents that wait; a context manager that ends the loan, and with it them."""

    def __init__(self, folder: Path | None) -> None:
        """Borrows the agents of the cluster with that folder, which may have none to lend."""
        self._loan = Loan(folder and folder / SOCKET, WaitingAgents)
        self.names = dict(self._loan.offer.names) if self._loan.offer else {}
        """The agents that can be taken, by the id of the node."""

    def take(self, nodes: Collection[str], hosts: HostCluster) -> dict[str, Any]:
        """Returns agents that answer and run the code that is installed, by the id of the node.

        Each is returned once. The others end.
        """
        names = {node: self.names.pop(node) for node in nodes if node in self.names}
        if not names:
            return {}
        return hosts.call_ray("taking the waiting agents", STATE_TIMEOUT_S, lambda: _usable(names))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._loan.close()


def _usable(names: dict[str, str]) -> dict[str, Any]:
    import ray

    agents = {}
    for node, name in names.items():
        with suppress(ValueError):  # it has ended
            agents[node] = ray.get_actor(name, namespace=NAMESPACE)
    if not agents:
        return {}
    calls = {node: agent.is_current.remote() for node, agent in agents.items()}
    ready, _ = ray.wait(list(calls.values()), num_returns=len(calls), timeout=ANSWER_TIMEOUT_S)
    usable = {}
    for node, call in calls.items():
        if call in ready and _is_true(call):
            usable[node] = agents[node]
        else:
            ray.kill(agents[node])
    return usable


def _is_true(call: Any) -> bool:
    """Returns a call's result; False when the agent has ended."""
    import ray
    from ray.exceptions import RayError

    try:
        return ray.get(call)
    except RayError:
        return False
