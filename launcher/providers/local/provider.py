"""Hosts simulated on this machine: Slipway's own Ray cluster, with one node per host.

The cluster does not outlive its owner. The nodes are children of a reaper, which ends them and
deletes their folder when this process ends for any reason (launcher/host/reaper.py).
"""

import secrets
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path

from launcher.cluster.local import Local
from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.core.formatting import pluralize
from launcher.host import standby_pool
from launcher.host.process_tree import ProcessTree, ReaperError
from launcher.planning.planner import library_environment
from launcher.planning.spec import LaunchSpec, backend_environment, user_xla_flags
from launcher.providers.base import HostProvider
from launcher.providers.local import memory, warm
from launcher.providers.local.network import Network, plan_network
from launcher.providers.ray import node_spec
from launcher.providers.ray.host_cluster import HostCluster, OwnedCluster
from launcher.providers.ray.node import NodeSpec
from launcher.providers.ray.node_group import Nodes
from launcher.providers.ray.workspace import free_port, new_token, private_folder, write_token
from trainer.contract.planning.plan import World


class LocalProvider(HostProvider):
    """Starts hosts on this machine, or uses those that `launch up` keeps warm."""

    def __init__(self, settings: Local) -> None:
        self._settings = settings

    def check(self, spec: LaunchSpec, *, later: bool = False) -> None:
        """Raises HostError when this machine cannot be the hosts, or has too little memory."""
        world = spec.provisioned_world
        _refuse_other_machines(world)
        arrays = memory.array_bytes(spec.host_memory) * spec.plan.world.hosts
        memory.refuse_if_too_large(world, arrays, spec.standby_bytes, later=later)

    def host_environment(self) -> dict[str, str] | None:
        """Returns the environment of all hosts; None when they have networks or variables apart."""
        apart = self._settings.netns or self._settings.host_env
        return None if apart else node_spec.host_environment()

    def standby_pool(self, spec: LaunchSpec) -> Path | None:
        """Returns the socket of the pool that `launch up` has started, if any."""
        kept = warm.find(
            spec.cluster_name, warm.WarmSettings(spec.provisioned_world, self._settings)
        )
        path = kept and kept.folder and kept.folder / standby_pool.SOCKET
        return path if path and path.exists() else None

    @contextmanager
    def allocate(self, spec: LaunchSpec, listener: Listener) -> Iterator[HostCluster]:
        """Yields the hosts that `launch up` keeps warm under the cluster's name, or new ones."""
        name, world = spec.cluster_name, spec.provisioned_world
        listener.on_status(f"starting {pluralize(world.hosts, 'host')}")
        kept = warm.find(name, warm.WarmSettings(world, self._settings))
        with (
            warm.use(name, spec.run_dir) if kept else nullcontext(),
            kept or start(world, self._settings, listener.on_status) as hosts,
        ):
            yield hosts


def _refuse_other_machines(world: World) -> None:
    """Raises HostError for accelerators of several hosts, which this machine cannot be."""
    if not world.simulated and not world.on_cpu and world.hosts > 1:
        raise HostError(
            f"{world.accelerator} has {world.hosts} hosts, and this machine is at most one of "
            "them. Set `provider` in a cluster file, or simulate the hosts here with --simulate"
        )


def start(
    world: World,
    settings: Local | None = None,
    on_status: Callable[[str], None] = lambda text: None,
) -> OwnedCluster:
    """Starts a Ray head and a node per host, and waits until all are up.

    Raises HostError with the missing hosts and the end of a log when some do not come up.
    """
    settings = settings or Local()
    folder = private_folder()
    network = plan_network(world.hosts) if settings.netns else None
    try:
        reaped = ProcessTree(
            folders=[folder],
            setup=network.setup() if network else [],
            cleanup=network.cleanup() if network else [],
        )
    except ReaperError as error:
        raise HostError(f"the hosts cannot be started: {error}") from error
    try:
        return _start_nodes(world, settings, reaped, folder, network, on_status)
    except BaseException:
        reaped.close()
        raise


def _start_nodes(
    world: World,
    settings: Local,
    reaped: ProcessTree,
    folder: Path,
    network: Network | None,
    on_status: Callable[[str], None],
) -> OwnedCluster:
    token_path = write_token(folder, new_token())
    address = network.ip if network else _loopback_addresses()
    head_ip = network.head_ip if network else address(-1)
    port = free_port(head_ip)
    environment = node_spec.environment(token_path)

    def host(process: int, generation: int) -> NodeSpec:
        own = {**environment, **settings.host_env.get(process, {})}
        ip = address(process)
        return node_spec.host(world, process, generation, ip, (head_ip, port), folder, own)

    nodes = Nodes(reaped, folder, environment, host, settings.replace_after_s)
    inside = network.inside if network else None
    nodes.start(node_spec.head(head_ip, port, folder, environment), world.hosts, inside)
    nodes.wait_until_up(on_status)
    return OwnedCluster(
        address=f"{head_ip}:{port}",
        driver_ip=head_ip,
        token_path=token_path,
        folder=folder,
        reaped=reaped,
        nodes=nodes,
    )


def start_standby_pool(hosts: OwnedCluster, world: World, settings: Local) -> bool:
    """Starts standby processes for the next run, where all hosts are alike and not too many.

    Returns whether it has.
    """
    environment = LocalProvider(settings).host_environment()
    if environment is None or world.processes > standby_pool.AT_MOST or hosts.folder is None:
        return False
    hosts.reaped.start(
        "standby pool",
        [sys.executable, "-m", standby_pool.__name__, str(hosts.folder), str(world.processes)],
        {
            **environment,
            **backend_environment(world, user_xla_flags()),
            **library_environment(world),
        },
        hosts.folder / "standby-pool.log",
    )
    return True


def _loopback_addresses() -> Callable[[int], str]:
    """Returns a function from process to address in 127.0.0.0/8 (-1: the head).

    Each launch has a random range of addresses.
    """
    base = (127 << 24) + ((16 + secrets.randbelow(224)) << 16) + (secrets.randbelow(240) << 8)

    def address(process: int) -> str:
        number = base + process + 2
        return socket.inet_ntoa(number.to_bytes(4, "big"))

    return address
