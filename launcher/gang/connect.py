"""Connects this process to the Ray cluster of a run's hosts, as their driver."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.core.errors import HostError
from launcher.core.events import Listener
from launcher.gang.agent_pool import RESERVE_TIMEOUT_S, AgentPool
from launcher.gang.gang import Gang
from launcher.gang.spawn import Patience
from launcher.providers.ray import logs, private
from launcher.providers.ray.host_cluster import HostCluster
from trainer.contract.planning.plan import World

CONNECT_TIMEOUT_S = 60.0
BEFORE_RAY = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Under `uv run`, Ray would package this folder and start every agent through uv again.
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_ENABLE_AUTO_CONNECT": "0",  # a call without a connection starts no new cluster
    # Ray's handler aborts this process 3 s after a SIGTERM, in the middle of a save.
    "RAY_DISABLE_FAILURE_SIGNAL_HANDLER": "1",
    # When a node is lost, calls to its agent would fail 1 to 2 s later: Ray waits for the reason.
    "RAY_timeout_ms_task_wait_for_death_info": "200",
    "RAY_core_worker_internal_heartbeat_ms": "100",
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
    """Connects to the hosts and yields a gang on them, for a caller that runs one attempt."""
    listener = listener or Listener()
    with (
        connected(hosts, run_dir, listener),
        AgentPool(hosts, run_dir, listener, reserve_timeout_s, patience) as agents,
    ):
        members, _ = agents.members(world)
        yield Gang(members, run_dir, listener)


@contextmanager
def connected(hosts: HostCluster, run_dir: Path, listener: Listener) -> Iterator[None]:
    """Connects to the hosts' Ray cluster as a driver. Raises HostError when that fails."""
    import_ray(hosts)
    with logs.keeping(hosts.folder, run_dir):
        listener.on_status("connecting to Ray")
        hosts.call_ray("connecting", CONNECT_TIMEOUT_S, lambda: _connect(hosts))
    try:
        yield
    finally:
        hosts.leave(_disconnect)


def _disconnect() -> None:
    import ray

    ray.shutdown()


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
