"""One process in the place of a whole world of CPU devices, to compile for any of its processes."""

import contextlib
import socket
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from jaxlib import _jax, xla_client  # type: ignore[attr-defined]

from trainer.contract.planning.plan import World
from trainer.distributed.private import distributed as jax_distributed
from trainer.distributed.private import xla_bridge

HOST = "127.0.0.1"
CONNECT_S = 60
SHUTDOWN_S = 5


def stand_in(world: World, process: int) -> None:
    """Makes JAX see the devices of a world of CPU devices as its process `process` does.

    Programs can be compiled for that process then, but not run. Call it before JAX has a backend.

    XLA learns the devices of a world from all of its processes, through JAX's coordination service.
    Here the service and a client for each process are in this one.
    """
    if world.processes == 1:
        return
    address = f"{HOST}:{_free_port()}"
    service = _jax.get_distributed_runtime_service(address, world.processes)
    with ThreadPoolExecutor(max_workers=world.processes) as threads:
        connected = list(
            threads.map(lambda number: _connect(world, number, address), range(world.processes))
        )
    client, backend = connected[process]
    state = jax_distributed.global_state
    state.service, state.client = service, client
    state.process_id, state.num_processes = process, world.processes
    _keep_alive.extend(connected)
    xla_bridge.register_backend_factory("cpu", lambda: backend, priority=0, fail_quietly=False)


_keep_alive: list[Any] = []
"""Clients of the other processes: one that is deleted disconnects."""


def _connect(world: World, process: int, address: str) -> tuple[Any, Any]:
    """Returns the client of a process, and its backend once all processes have connected."""
    client = _jax.get_distributed_runtime_client(
        address, process, init_timeout=CONNECT_S, shutdown_timeout=SHUTDOWN_S
    )
    client.connect()
    # Without collectives, XLA refuses to compile for several processes.
    collectives = _jax.make_gloo_tcp_collectives(distributed_client=client, hostname=HOST)
    backend = xla_client.make_cpu_client(
        distributed_client=client,
        node_id=process,
        num_nodes=world.processes,
        collectives=collectives,
    )
    return client, backend


def _free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
