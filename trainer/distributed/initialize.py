"""Configures JAX and connects the processes of an attempt: the only caller of jax.distributed."""

import contextlib
import functools
import math
import os
import socket
import time
from collections.abc import Iterator

import jax
from jaxlib import _jax  # type: ignore[attr-defined]

from trainer.contract.config.job import Deadlines
from trainer.contract.config.loader import ConfigError
from trainer.contract.planning.plan import World
from trainer.contract.protocol.environment import JAX_COORDINATOR_ADDRESS, NUM_PROCESSES
from trainer.contract.storage.cache_dirs import cache_folder
from trainer.contract.storage.compiled_programs import COMPILED
from trainer.distributed import gpu_env
from trainer.distributed.private import distributed as jax_distributed
from trainer.distributed.private import xla_bridge
from trainer.distributed.process_env import Environment

INITIALIZE_MARGIN_S = 30
"""JAX stops waiting for missing processes this long before the launcher reports a hang: JAX's error
names them."""
HEARTBEAT_S, SUPERVISED_HEARTBEAT_S = 30, 600
"""JAX ends all processes when one has been silent for this long. A launcher notices such a process
earlier, and that all of them are silent when a machine pauses, which is no failure."""
SHUTDOWN_S = 20
BARRIER_S = 300
CONNECT_TIMEOUT_S, POLL_INTERVAL_S = 5.0, 0.02


class PortTakenError(Exception):
    """The coordinator's port is in use on this host; a retry can use another port."""


def start(environment: Environment, deadlines: Deadlines, *, on_cpu: bool) -> None:
    """Connects this process to the others; does nothing for a single process.

    Raises ConfigError without a coordinator's address, PortTakenError on process 0. When a process
    is missing, jaxlib ends this one with SIGABRT before `deadlines.start_s` is over, and offers no
    way to catch it.
    """
    if environment.processes == 1:
        return
    if not environment.coordinator:
        count = environment.processes
        raise ConfigError([f"{NUM_PROCESSES} is {count}, but {JAX_COORDINATOR_ADDRESS} is not set"])
    if environment.process == 0:
        _check_port(environment.coordinator_bind or _everywhere(environment.coordinator))
    limit_s, supervised = _initialize_s(deadlines), environment.is_supervised
    if environment.process != 0:
        began = time.monotonic()
        _wait_for_coordinator(environment.coordinator, limit_s)
        limit_s = max(1, limit_s - int(time.monotonic() - began))
    # JAX's service would catch SIGTERM. Without it, the signal reaches StopSignal or, in a job
    # without checkpoints, ends the process.
    jax.config.update("jax_enable_preemption_service", False)
    # JAX warns about proxies, but the launcher exempts the hosts from them.
    jax.config.update("jax_check_proxy_envs", False)
    jax.distributed.initialize(
        environment.coordinator,
        environment.processes,
        environment.process,
        coordinator_bind_address=environment.coordinator_bind,
        cluster_detection_method="deactivate",
        initialization_timeout=limit_s,
        heartbeat_timeout_seconds=SUPERVISED_HEARTBEAT_S if supervised else HEARTBEAT_S,
        shutdown_timeout_seconds=SHUTDOWN_S,
    )
    if on_cpu:
        _bind_collectives(environment.coordinator)


def _wait_for_coordinator(address: str, limit_s: float) -> None:
    """Waits until process 0 listens, or for `limit_s`: JAX then reports what is missing.

    A client of JAX that finds no coordinator tries again after 1 s, and later after more.
    """
    host, _, port = address.rpartition(":")
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            socket.create_connection((host, int(port)), CONNECT_TIMEOUT_S).close()
            return
        except OSError:
            time.sleep(POLL_INTERVAL_S)


def _initialize_s(deadlines: Deadlines) -> int:
    """Returns the seconds that JAX waits until all processes have connected."""
    limit_s = deadlines.start_s
    return math.ceil(max(limit_s - INITIALIZE_MARGIN_S, limit_s / 2))


@contextlib.contextmanager
def all_keep_compiled(*, on_cpu: bool) -> Iterator[None]:
    """Lets every process on CPU write to the compile cache, which the next attempt reads.

    JAX lets only process 0 write the cache. On CPU, a program's key differs between processes, so
    the other processes would compile again after every restart.
    """
    state = jax_distributed.global_state
    process = state.process_id
    state.process_id = 0 if on_cpu else process
    try:
        yield
    finally:
        state.process_id = process


def check_world(world: World, process: int) -> None:
    """Raises ValueError unless the processes and devices match the plan.

    On TPU, JAX takes a process's number from the slice, not from the arguments of `start`.
    """
    if jax.process_index() != process:
        raise ValueError(
            f"process {process} of the plan is process {jax.process_index()} of JAX: "
            "the hosts are not in the order of the TPU's workers"
        )
    seen_and_planned = {
        "processes": (jax.process_count(), world.processes),
        "devices": (jax.device_count(), world.devices),
        "local devices": (jax.local_device_count(), world.devices_per_process),
    }
    wrong = [
        f"found {seen} {what}, planned {planned}"
        for what, (seen, planned) in seen_and_planned.items()
        if seen != planned
    ]
    if wrong:
        raise ValueError(f"the hosts differ from the plan: {'; '.join(wrong)}")
    if jax.default_backend() != world.platform and not world.simulated:
        raise ValueError(f"planned for {world.platform}, but JAX runs on {jax.default_backend()}")


def barrier(name: str, deadline_s: float = BARRIER_S, key: str = "") -> None:
    """Waits for all processes. `key` is the job key that sets the deadline.

    Raises TimeoutError, which names the missing processes.
    """
    client = jax_distributed.global_state.client
    if client is None:
        return
    try:
        client.wait_at_barrier(name, int(deadline_s * 1000))
    except jax.errors.JaxRuntimeError as error:
        limit = f"{deadline_s:.0f} s ({key})" if key else f"{deadline_s:.0f} s"
        raise TimeoutError(f"not all processes reached '{name}' within {limit}: {error}") from error


def wait_for_compilers(name: str, deadlines: Deadlines) -> None:
    """Waits until all processes have compiled: collectives time out on a late process.

    Raises TimeoutError after `deadlines.compile_s`.
    """
    barrier(name, deadlines.compile_s, "deadlines.compile_s")


def shutdown() -> None:
    """Disconnects all processes together; every process must call it."""
    if jax_distributed.global_state.client is not None:
        jax.distributed.shutdown()


def _everywhere(coordinator: str) -> str:
    """Returns the wildcard address of this host, on which JAX listens by default."""
    host = "[::]" if socket.has_dualstack_ipv6() else "0.0.0.0"
    return f"{host}:{coordinator.rpartition(':')[2]}"


def _check_port(address: str) -> None:
    """Raises PortTakenError unless the coordinator can listen at that address."""
    host, _, port = address.rpartition(":")
    try:
        kind = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with contextlib.closing(socket.socket(kind[0], socket.SOCK_STREAM)) as probe:
            if kind[0] == socket.AF_INET6:
                probe.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(kind[4])
            probe.listen(1)
    except OSError as error:
        raise PortTakenError(f"cannot bind the coordinator's port {port}: {error}") from None


def _bind_collectives(coordinator: str) -> None:
    """Makes CPU collectives listen on this host's address in the coordinator's network.

    The default is the address of the host's name, often 127.0.0.1, which others cannot reach.
    """
    collectives = _jax.make_gloo_tcp_collectives(
        distributed_client=jax_distributed.global_state.client, hostname=_own_address(coordinator)
    )
    make_client = functools.partial(xla_bridge.make_cpu_client, collectives=collectives)
    xla_bridge.register_backend_factory("cpu", make_client, priority=0, fail_quietly=False)


def _own_address(coordinator: str) -> str:
    """Returns this host's address on the route to the coordinator; sends nothing."""
    host, _, port = coordinator.rpartition(":")
    kind = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_DGRAM)[0]
    with contextlib.closing(socket.socket(kind[0], socket.SOCK_DGRAM)) as probe:
        probe.connect(kind[4])
        return str(probe.getsockname()[0])


def configure() -> None:
    """Configures JAX's compile cache, its random numbers and GPUs; call it before any is used."""
    gpu_env.set_defaults(os.environ)
    jax.config.update("jax_compilation_cache_dir", str(cache_folder() / COMPILED))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    # Random numbers must not depend on the sharding of an array.
    jax.config.update("jax_threefry_partitionable", True)
