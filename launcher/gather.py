"""From hosts that wait in a Ray cluster to a gang: connect, reserve, an agent on each host."""

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.gang import Event, Gang
from launcher.outcome import host_name
from launcher.providers.hosts import Hosts, ProviderError
from launcher.reservation import Reservation, missing, reserve
from trainer.spec.plan import World

RESERVE_TIMEOUT_S = 20.0
"""Providers hand over hosts that are up: who is missing or busy now has a reason."""
AGENTS_TIMEOUT_S = 300.0
LOOK_S = 0.5


@contextmanager
def gather(
    hosts: Hosts,
    world: World,
    run_dir: Path,
    on_event: Callable[[Event], None] = lambda event: None,
    on_line: Callable[[int, str], None] = lambda process, line: None,
    reserve_timeout_s: float = RESERVE_TIMEOUT_S,
) -> Iterator[Gang]:
    """Connect to the hosts' Ray cluster, reserve the world's hosts and put an agent on each.

    Raises ProviderError where hosts are missing or busy. On the way out all of it is given back.
    """
    import_ray(hosts)
    import ray

    _connect(hosts)
    reservation: Reservation | None = None
    gang: Gang | None = None
    try:
        reservation = reserve(world, reserve_timeout_s)
        gang = Gang(_agents(world, reservation), run_dir, on_event, on_line)
        yield gang
    finally:
        if gang is not None:
            gang.end()
        if reservation is not None:
            reservation.release()
        ray.shutdown()


def import_ray(hosts: Hosts) -> None:
    """Import Ray for this cluster: nothing of the user's environment may lead it to another one."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(hosts.token_path)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Under `uv run` Ray would pack up this folder and start every agent through uv again.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    import ray  # noqa: F401


def _connect(hosts: Hosts) -> None:
    import ray

    try:
        ray.init(
            address=hosts.address,
            _node_ip_address=hosts.driver_ip,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError) as error:
        raise ProviderError(f"no connection to Ray at {hosts.address}: {error}") from error


def _agents(world: World, reservation: Reservation) -> list[Any]:
    """One actor per bundle, all of them up. Raises ProviderError with the hosts that are not."""
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    from launcher.agent import Agent

    bundle = dict(reservation.bundle)
    actor = ray.remote(Agent)
    agents = [
        actor.options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            resources={k: v for k, v in bundle.items() if k not in ("CPU", "GPU")},
            max_restarts=0,
            max_concurrency=4,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                reservation.placement_group, placement_group_bundle_index=process
            ),
        ).remote(process)
        for process in range(world.processes)
    ]
    _wait_for(agents, world)
    return agents


def _wait_for(agents: Sequence[Any], world: World) -> None:
    """Until all agents answer. Raises ProviderError with the hosts that do not or are gone."""
    import ray
    from ray.exceptions import RayError

    calls = {agent.address.remote(): process for process, agent in enumerate(agents)}
    deadline = time.monotonic() + AGENTS_TIMEOUT_S
    while calls:
        ready, _ = ray.wait(list(calls), num_returns=1, timeout=LOOK_S)
        try:
            ray.get(ready)
        except RayError as error:
            line = str(error).strip().splitlines()[0]
            raise ProviderError(f"no agent on {host_name(calls[ready[0]])}: {line}") from error
        for call in ready:
            del calls[call]
        if not ready and (gone := missing(world)):
            raise ProviderError(f"a host was lost: {gone}")
        if calls and time.monotonic() > deadline:
            names = ", ".join(host_name(process) for process in calls.values())
            raise ProviderError(f"no agent came up on {names} in {AGENTS_TIMEOUT_S:.0f} s")
