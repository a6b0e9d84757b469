"""From hosts that wait in a Ray cluster to a gang: connect, reserve, an agent on each host."""

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher import ray_logs
from launcher.agents import Patience, start_agents
from launcher.gang import Event, Gang
from launcher.providers.hosts import Hosts, ProviderError
from launcher.ray_calls import bounded
from launcher.reservation import Reservation, reserve
from trainer.spec.plan import World

CONNECT_TIMEOUT_S, LEAVE_TIMEOUT_S = 60.0, 60.0
RESERVE_TIMEOUT_S = 20.0
"""Providers hand over hosts that are up: who is missing or busy now has a reason."""


@contextmanager
def gather(
    hosts: Hosts,
    world: World,
    run_dir: Path,
    on_event: Callable[[Event], None] = lambda event: None,
    on_line: Callable[[int, str], None] = lambda process, line: None,
    on_status: Callable[[str], None] = lambda text: None,
    reserve_timeout_s: float = RESERVE_TIMEOUT_S,
    patience: Patience | None = None,
) -> Iterator[Gang]:
    """Connect to the hosts' Ray cluster, reserve the world's hosts and put an agent on each.

    Raises ProviderError where hosts are missing or busy or Ray is stuck; what Ray's processes said
    is then in the run's folder. On the way out all of it is given back.
    """
    import_ray(hosts)
    reservation: Reservation | None = None
    gang: Gang | None = None
    connected = False

    def warn(text: str) -> None:
        on_event({"event": "warning", "kind": "agent", "message": text})

    try:
        with _keeping_logs(hosts, run_dir):
            on_status("connecting to Ray")
            bounded("connecting", CONNECT_TIMEOUT_S, lambda: _connect(hosts))
            connected = True
            on_status("reserving the hosts")
            reservation = reserve(world, reserve_timeout_s)
            agents = start_agents(world, reservation, on_status, warn, patience or Patience())
        gang = Gang(agents, run_dir, on_event, on_line)
        yield gang
    finally:
        if connected:
            # Where Ray is stuck, the end of this process gives everything back.
            with suppress(ProviderError):
                bounded("leaving", LEAVE_TIMEOUT_S, lambda: _leave(gang, reservation))


def _leave(gang: Gang | None, reservation: Reservation | None) -> None:
    import ray

    if gang is not None:
        gang.end()
    if reservation is not None:
        reservation.release()
    ray.shutdown()


@contextmanager
def _keeping_logs(hosts: Hosts, run_dir: Path) -> Iterator[None]:
    """Ray's logs are deleted with the hosts: the error says where they are kept."""
    try:
        yield
    except ProviderError as error:
        target = run_dir / "logs" / "ray"
        if not ray_logs.keep(hosts.folder, target):
            raise
        raise ProviderError(f"{error}. Ray's own logs: {target}") from error


def import_ray(hosts: Hosts) -> None:
    """Import Ray for this cluster: nothing of the user's environment may lead it to another one."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        del os.environ[name]
    os.environ["RAY_AUTH_MODE"] = "token"
    os.environ["RAY_AUTH_TOKEN_PATH"] = str(hosts.token_path)
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    # Under `uv run` Ray would pack up this folder and start every agent through uv again.
    os.environ["RAY_ENABLE_UV_RUN_RUNTIME_ENV"] = "0"
    os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"  # a call without a connection starts no new cluster
    import ray  # noqa: F401


def _connect(hosts: Hosts) -> None:
    """In a thread, where Ray cannot put its own SIGTERM handler over ours; it warns of that."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
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
