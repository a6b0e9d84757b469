"""A host as Ray sees it: its node's parameters, resources, labels and environment."""

import os
import string
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launcher.providers.ray.node import RETRY_S, NodeSpec
from launcher.providers.ray.workspace import token_variables
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World
from trainer.contract.protocol.environment import PROGRAMS_BYTES

HOST_LABEL = "slipway-host"
HostSlot = tuple[str, int]
"""A host's slice and its worker id in the slice; without slices, "" and the host's number."""
# Slipway stores nothing in it. Ray's minimum is 78.6 MB (OBJECT_STORE_MINIMUM_MEMORY_BYTES in
# ray/_private/ray_constants.py).
OBJECT_STORE_BYTES = 80_000_000
# Ray notices a lost node in 10 s, not in 15 or 65 as by default (src/ray/common/ray_config_def.h).
# With a shorter time, a machine whose cores are all busy with training appears lost.
HEALTH_CHECK = {
    "health_check_initial_delay_ms": 0,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 10,
}
COMMON_PARAMETERS = {
    "include_log_monitor": False,
    "min_worker_port": 0,
    "max_worker_port": 0,
    "object_store_memory": OBJECT_STORE_BYTES,
    # Ray's default port may be in use by another Ray.
    "dashboard_agent_listen_port": 0,
}
FIND_HEAD_S, CONNECT_S = 120.0, 10.0
"""Limits on looking for the head and on connecting to the own raylet. In Ray: 40 and 10 s."""
# Variables of another cluster or of real chips must not reach a simulated one.
NOT_INHERITED = ("RAY_", "TPU_", "MEGASCALE_", "SLIPWAY_", "JAX_")


def slice_name(number: int) -> str:
    """Returns slice-a ... slice-z, then slice-26, ..."""
    letters = string.ascii_lowercase
    return f"slice-{letters[number] if number < len(letters) else number}"


def place(world: World, process: int) -> HostSlot:
    """Returns the slot of a process's host, as the labels of its node report it."""
    if world.platform != "tpu":
        return "", process
    number, worker = divmod(process, world.hosts_per_slice)
    return slice_name(number), worker


def host_environment() -> dict[str, str]:
    """Returns the environment of programs on hosts of this machine, without what Ray adds.

    It is this process's, without the variables of another Ray or of real chips.
    """
    inherited = {
        k: v
        for k, v in os.environ.items()
        if k == PROGRAMS_BYTES or not k.startswith(NOT_INHERITED)
    }
    here = str(Path(__file__).parents[3])
    paths = [here, *inherited.get("PYTHONPATH", "").split(os.pathsep)]
    return {
        **inherited,
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", "")]),
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
    }


def environment(token_path: Path) -> dict[str, str]:
    """Returns the environment of every node, with Slipway's token."""
    return {
        **host_environment(),
        **token_variables(token_path),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_raylet_start_wait_time_s": "120",
        "RAY_NUM_REDIS_GET_RETRIES": f"{FIND_HEAD_S / RETRY_S:.0f}",
        # A node starts one process at a time: one that hangs while it starts blocks all others
        # until the raylet kills it, after 60 s by default.
        "RAY_worker_register_timeout_seconds": "30",
        # By default Ray's workers, and so the trainer, have a lower priority than other processes.
        "RAY_worker_niceness": "0",
        # A raylet that connects to its object store before that listens would sleep for 1 s.
        "RAY_raylet_client_connect_timeout_milliseconds": f"{1000 * RETRY_S:.0f}",
        "RAY_raylet_client_num_connect_attempts": f"{CONNECT_S / RETRY_S:.0f}",
        # A host starts a worker with its node: the first agent on it need not wait for one.
        "RAY_enable_worker_prestart": "1",
        # A worker that has started with its node stays until an agent needs it.
        "RAY_kill_idle_workers_interval_ms": "0",
        # Ray's memory monitor would kill the agent, the only worker, and not the program.
        "RAY_memory_monitor_refresh_ms": "0",
    }


def head(ip: str, port: int, folder: Path, environment: Mapping[str, str]) -> NodeSpec:
    """Returns the driver's node, the head. It has no resources: Ray places nothing else on it."""
    parameters = {**_head_parameters(port), "num_cpus": 0}
    return _node("head", ip, folder, parameters, environment, is_head=True)


def driver(
    generation: int,
    ip: str,
    head_address: tuple[str, int],
    folder: Path,
    environment: Mapping[str, str],
) -> NodeSpec:
    """Returns the node of a driver on another machine than the head. It has no resources either."""
    head_ip, port = head_address
    parameters = {"gcs_address": f"{head_ip}:{port}", "num_cpus": 0, "num_gpus": 0}
    return _node(_name("driver", generation), ip, folder, parameters, environment)


def host(
    world: World,
    process: int,
    generation: int,
    ip: str,
    head_address: tuple[str, int],
    folder: Path,
    environment: Mapping[str, str],
    *,
    is_head: bool = False,
) -> NodeSpec:
    """Returns the node of one host, as the real host would appear to Ray except for the chips.

    `generation` counts from 1: each replacement of a lost node needs its own name.
    `is_head`: the node is the head at `head_address`.
    """
    resources, more_environment = _hardware(world, process)
    head_ip, port = head_address
    parameters = {
        **(_head_parameters(port) if is_head else {"gcs_address": f"{head_ip}:{port}"}),
        "num_cpus": 1,
        "labels": {HOST_LABEL: str(process)},
        **resources,
    }
    return _node(
        _name(f"host-{process:04d}", generation),
        ip,
        folder,
        parameters,
        {**environment, **more_environment},
        is_head=is_head,
        after=None if is_head else head_address,
    )


def _name(of: str, generation: int) -> str:
    return of + (f"-{generation}" if generation > 1 else "")


def _head_parameters(port: int) -> dict[str, Any]:
    return {
        "gcs_server_port": port,
        "include_dashboard": False,
        "no_monitor": True,
        "_system_config": HEALTH_CHECK,
    }


def _hardware(world: World, process: int) -> tuple[dict[str, Any], dict[str, str]]:
    """Returns parameters and environment.

    Ray derives the labels and the head resource from TPU_*.
    """
    if world.platform == "cpu":
        return {}, {}
    if world.platform == "gpu":
        return {"num_gpus": world.devices_per_host}, {}
    name, worker = place(world, process)
    kind = accelerators.parse(
        world.accelerator, hosts=world.hosts_per_slice, devices_per_host=world.devices_per_host
    )
    return {"resources": {"TPU": kind.chips_per_host}}, {
        "TPU_NAME": name,
        "TPU_WORKER_ID": str(worker),
        "TPU_ACCELERATOR_TYPE": kind.ray_pod_type or "",
        "TPU_TOPOLOGY": "x".join(map(str, kind.topology or ())),
    }


def _node(
    name: str,
    ip: str,
    folder: Path,
    parameters: Mapping[str, Any],
    environment: Mapping[str, str],
    *,
    is_head: bool = False,
    after: tuple[str, int] | None = None,
) -> NodeSpec:
    temporary = folder / name.removeprefix("host-").lstrip("0").rjust(1, "0")
    own = {"node_ip_address": ip, "node_name": name, "temp_dir": str(temporary)}
    return NodeSpec(
        name=name,
        is_head=is_head,
        parameters={**COMMON_PARAMETERS, **parameters, **own},
        folder=str(temporary),
        environment=dict(environment),
        log=str(folder / f"{name}.log"),
        after=after,
    )
