"""Turns hosts of a Ray cluster into a gang: connects, reserves, starts an agent on each host."""

import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.gang.early_standby import EarlyStandby
from launcher.gang.environment_check import check_equipment
from launcher.gang.gang import Gang
from launcher.gang.reservation import Reservation, reserve
from launcher.gang.run_dir_sync import not_sharing
from launcher.gang.spawn import Patience, start_agents
from launcher.providers.ray import logs, private
from launcher.providers.ray.host_cluster import HostCluster
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import WarningEvent

CONNECT_TIMEOUT_S, LEAVE_TIMEOUT_S = 60.0, 45.0
RESERVE_TIMEOUT_S = 20.0
"""Seconds to reserve the hosts. Providers return hosts that are up, so a host that is missing or
busy now has a reason."""
BEFORE_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run`, Ray would package this folder and start every agent through uv again.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call without a connection starts no new cluster
    # Ray's handler aborts this process 3 s after a SIGTERM, in the middle of a save.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
}
"""Environment variables that Ray reads when it is imported."""
JOB_OF_RAY = "RAY_JOB_CONFIG_JSON_ENV_VAR"
"""The variable that sends the code of a job of the cluster's Jobs API to all hosts."""


@contextmanager
def gather(
    hosts: HostCluster,
    world: World,
    run_dir: Path,
    listener: Listener | None = None,
    reserve_timeout_s: float = RESERVE_TIMEOUT_S,
    patience: Patience | None = None,
) -> Iterator[Gang]:
    """Combines `connected` and `assembled`, for a caller that runs one attempt."""
    listener = listener or Listener()
    with (
        connected(hosts, run_dir, listener),
        assembled(hosts, world, run_dir, listener, reserve_timeout_s, patience) as gang,
    ):
        yield gang


@contextmanager
def connected(hosts: HostCluster, run_dir: Path, listener: Listener) -> Iterator[None]:
    """Connects to the hosts' Ray cluster as a driver. Raises HostError when that fails."""
    import_ray(hosts)
    with _keeping_logs(hosts, run_dir):
        listener.on_status("connecting to Ray")
        hosts.call_ray("connecting", CONNECT_TIMEOUT_S, lambda: _connect(hosts))
    try:
        yield
    finally:
        _call_bounded(hosts, _disconnect)


@contextmanager
def assembled(
    hosts: HostCluster,
    world: World,
    run_dir: Path,
    listener: Listener,
    reserve_timeout_s: float = RESERVE_TIMEOUT_S,
    patience: Patience | None = None,
    early: EarlyStandby | None = None,
) -> Iterator[Gang]:
    """Reserves the world's hosts and starts an agent on each; releases everything on exit.

    The agents take over the programs of `early`. Raises HostError when hosts are missing or busy,
    or Ray is stuck. Ray's logs are then kept in the run's folder.
    """
    reservation: Reservation | None = None
    gang: Gang | None = None

    def warn(text: str) -> None:
        listener.on_event(WarningEvent(category="agent", message=text))

    def release() -> None:
        if gang is not None:
            gang.end()
        if reservation is not None:
            reservation.release()

    try:
        with _keeping_logs(hosts, run_dir):
            listener.on_status("reserving the hosts")
            reservation = reserve(world, hosts, reserve_timeout_s)
            if hosts.is_external:
                listener.on_status("checking code and Python on every host")
                check_equipment(reservation)
            patience = patience or Patience()
            python = sys.executable if hosts.is_external else None
            agents = start_agents(world, reservation, listener.on_status, warn, patience, python)
            nodes = reservation.nodes()
            apart = [] if hosts.is_on_this_machine else not_sharing(agents, run_dir)
        gang = Gang(agents, reservation.places, nodes, run_dir, listener, apart, early)
        yield gang
    finally:
        _call_bounded(hosts, release)


def _call_bounded(hosts: HostCluster, call: Callable[[], None]) -> None:
    """Runs `call`. If Ray is stuck or gone, the end of this process releases everything instead."""
    if not hosts.head_is_down:
        with suppress(HostError):
            hosts.call_ray("leaving", LEAVE_TIMEOUT_S, call)


def _disconnect() -> None:
    import ray

    ray.shutdown()


@contextmanager
def _keeping_logs(hosts: HostCluster, run_dir: Path) -> Iterator[None]:
    """Copies Ray's logs, which are deleted with the hosts, on an error, and adds the path to it."""
    try:
        yield
    except HostError as error:
        target = run_dir / "logs" / "ray"
        if not logs.keep(hosts.folder, target):
            raise
        raise HostError(f"{error}. Ray's own logs: {target}") from error


def import_ray(hosts: HostCluster) -> None:
    """Imports Ray for this cluster, and drops what selected an earlier one.

    That is `RAY_*` variables and, where this process has had a run before, that run's token.
    """
    kept = JOB_OF_RAY if hosts.is_external else ""
    for name in [n for n in os.environ if n.startswith("RAY_") and n != kept]:
        del os.environ[name]
    os.environ.update({**hosts.ray_variables, **BEFORE_RAY})
    import ray  # noqa: F401

    private.token_loader().reset_cache()


def _connect(hosts: HostCluster) -> None:
    """Connects in a thread, where Ray cannot replace the SIGTERM handler; Ray warns about that."""
    import ray

    logging.getLogger("ray").setLevel(logging.ERROR)
    # It would print pages of raylet messages about lost workers and nodes into the display.
    private.worker().listen_error_messages = lambda *_: None
    try:
        ray.init(
            address=hosts.address,
            _node_ip_address=hosts.driver_ip,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (ConnectionError, RuntimeError) as error:
        raise HostError(f"no connection to Ray at {hosts.address}: {error}") from error
