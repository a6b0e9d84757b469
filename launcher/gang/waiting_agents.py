"""The agents of a warm cluster, which wait for the next run on it.

A program, `python -m launcher.gang.waiting_agents FOLDER ADDRESS DRIVER_IP`, among the processes
of the cluster. It is connected to the cluster's Ray, and keeps an agent on each host: to start one,
Ray starts a worker, which imports Ray. A launch that connects to the socket receives the agents'
names, and stays connected until its run has ended. Then they end, and those of the next run start.
They take none of a host's resources, which every run reserves as usual.
"""

import secrets
import sys
from pathlib import Path
from typing import Any

from launcher.core.events import Listener
from launcher.core.lending import Lender
from launcher.gang.agent import LEASE_S
from launcher.gang.borrowed_agents import NAMESPACE, SOCKET, WaitingAgents
from launcher.gang.connect import connected
from launcher.gang.spawn import agent_with
from launcher.providers.ray.host_cluster import OwnedCluster, WarmCluster
from launcher.providers.ray.node_spec import HOST_LABEL, host_environment
from launcher.providers.ray.workspace import token_variables


class AgentKeeper(Lender):
    """Lends the agents that wait."""

    KEEP_ALIVE_S = LEASE_S / 4

    def __init__(self, folder: Path) -> None:
        """Listens in the cluster's folder; this process is connected to its Ray."""
        super().__init__(folder / SOCKET)
        self._agents: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        """Both by the id of the node."""

    def start(self) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._names = {}
        for node in ray.nodes():
            if not node["Alive"] or HOST_LABEL not in node["Labels"]:
                continue
            node_id, name = node["NodeID"], f"agent-{secrets.token_hex(8)}"
            self._names[node_id] = name
            self._agents[node_id] = agent_with(
                name=name,
                namespace=NAMESPACE,
                num_cpus=0,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )

    def offer(self) -> WaitingAgents:
        return WaitingAgents(self._names)

    def end(self) -> None:
        """Ends the agents with all that runs on their hosts, however the launch has ended."""
        import ray

        while self._agents:
            ray.kill(self._agents.popitem()[1])

    def keep_alive(self) -> None:
        for agent in self._agents.values():
            agent.address.remote()


def keep_waiting(hosts: OwnedCluster) -> None:
    """Starts the program for a cluster, among whose processes it is."""
    assert hosts.folder is not None
    place = [str(hosts.folder), hosts.address, hosts.driver_ip]
    hosts.reaped.start(
        "waiting agents",
        [sys.executable, "-m", "launcher.gang.waiting_agents", *place],
        {**host_environment(), **token_variables(hosts.token_path)},
        hosts.folder / "waiting-agents.log",
    )


def main() -> None:
    """Keeps agents until the cluster ends."""
    folder, address, driver_ip = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
    hosts = WarmCluster(address, driver_ip, folder / "token")
    with connected(hosts, folder, Listener()):
        AgentKeeper(folder).serve()


if __name__ == "__main__":
    main()
