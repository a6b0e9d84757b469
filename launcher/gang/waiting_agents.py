"""The agents of a warm cluster, which wait for the next run on it.

A program, `python -m launcher.gang.waiting_agents FOLDER ADDRESS DRIVER_IP`, among the processes
of the cluster. It is connected to the cluster's Ray, and keeps an agent on each host: to start one,
Ray starts a worker, which imports Ray. A launch that connects to the socket receives the agents'
names, and stays connected until its run has ended. Then they end, and those of the next run start.
They take none of a host's resources, which every run reserves as usual.
"""

import secrets
import select
import socket
import sys
from pathlib import Path
from typing import Any

from launcher.core.events import Listener
from launcher.core.messages import encode
from launcher.gang.agent import LEASE_S
from launcher.gang.borrowed_agents import NAMESPACE, SOCKET, WaitingAgents
from launcher.gang.connect import connected
from launcher.gang.spawn import agent_with
from launcher.providers.ray.host_cluster import OwnedCluster, WarmCluster
from launcher.providers.ray.node_spec import HOST_LABEL, host_environment
from launcher.providers.ray.workspace import token_variables


class AgentKeeper:
    """The agents that wait, and the one launch that holds them."""

    def __init__(self, folder: Path) -> None:
        """Listens in the cluster's folder; this process is connected to its Ray."""
        self._agents: dict[str, Any] = {}
        self._names: dict[str, str] = {}
        """Both by the id of the node."""
        self._server = socket.socket(socket.AF_UNIX)
        self._server.bind(str(folder / SOCKET))
        self._holder: socket.socket | None = None

    def serve(self) -> None:
        """Serves one launch after the other. A launch that comes meanwhile gets nothing."""
        self._start()
        self._server.listen()
        while True:
            sources = [self._server, *filter(None, [self._holder])]
            for ready in select.select(sources, [], [], LEASE_S / 4)[0]:
                if ready is self._server:
                    self._admit(self._server.accept()[0])
                else:
                    self._end_loan()
            if self._holder is None:
                self._keep_alive()

    def _admit(self, launch: socket.socket) -> None:
        if self._holder is not None:
            launch.close()
            return
        self._holder = launch
        try:
            launch.sendall(encode(WaitingAgents(self._names)))
        except OSError:  # it has ended
            self._end_loan()

    def _end_loan(self) -> None:
        """Ends the agents with all that runs on their hosts, however the launch has ended."""
        import ray

        if self._holder is not None:
            self._holder.close()
            self._holder = None
        while self._agents:
            ray.kill(self._agents.popitem()[1])
        self._start()

    def _start(self) -> None:
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

    def _keep_alive(self) -> None:
        """Keeps agents that no run uses from ending themselves."""
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
