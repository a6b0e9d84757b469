"""`python -m launcher.providers.ray.node_starter NODES.json`: starts Ray nodes.

A child of the reaper. It imports Ray once and forks once per node; each fork runs what
`ray start --block` runs. Prints one JSON line when a node has ended.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil

from launcher.host.reaper import die_with_parent
from launcher.providers.ray import private
from launcher.providers.ray.node_group import NodeSpec, is_up
from launcher.providers.ray.node_spec import RETRY_S

HEAD_TIMEOUT_S = 90.0
REGISTER_TIMEOUT_S = 120.0
"""Limit for a raylet, whose agents are up first: Ray's 30 s are too short on a busy machine."""
POLL_INTERVAL_S = 0.2
IDLE_AGENT = str(Path(__file__).with_name("idle_agent.py"))
PORTS_OF_AGENTS = {
    "--dashboard_agent_command": (
        "metrics_agent_port",
        "metrics_export_port",
        "dashboard_agent_listen_port",
    ),
    "--runtime_env_agent_command": ("runtime_env_agent_port",),
}
"""Option of the raylet that starts an agent -> the ports that it waits for."""
AT_ONCE = 2 * len(os.sched_getaffinity(0))
"""Maximum number of nodes that start concurrently.

If 64 start together on two cores, Ray gives up on each before it is up.
"""


def main() -> None:
    """Starts the nodes in the file's order, the head first, AT_ONCE at a time.

    Returns when all have ended.
    """
    from ray.scripts import scripts

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    running: dict[int, NodeSpec] = {}
    for fields in json.loads(Path(sys.argv[1]).read_text()):
        node = NodeSpec(**fields)
        if node.after:
            _wait_for_port(*node.after)
        while sum(not is_up(one) for one in running.values()) >= AT_ONCE:
            _note_end(running, os.WNOHANG)
            time.sleep(POLL_INTERVAL_S)
        prepare = die_with_parent(os.getpid())
        pid = os.fork()
        if pid == 0:
            prepare()
            _become(node, scripts.main)
        running[pid] = node
    while running:
        _note_end(running, 0)


def _note_end(running: dict[int, NodeSpec], options: int) -> None:
    """Waits for a node to end and prints that it has. WNOHANG skips the wait."""
    pid, status = os.waitpid(-1, options)
    if pid in running:
        print(json.dumps({"ended": running.pop(pid).name, "status": status}), flush=True)


def _become(node: NodeSpec, ray_command: Callable[[], None]) -> None:
    """Turns this fork into the node; never returns."""
    code = 1
    try:
        output = os.open(node.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(node.environment)
        sys.argv = ["ray", "start", "--block", *node.flags]
        _retry_soon()
        _await_raylet()
        if not node.has_agents:
            _leave_out_services()
        threading.Thread(target=_end_with_raylet, daemon=True).start()
        ray_command()
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _retry_soon() -> None:
    """Looks for the head every RETRY_S. Ray sleeps for 1 or 2 s, mostly longer than is needed."""
    soon = SimpleNamespace(**vars(time))
    soon.sleep = lambda seconds: time.sleep(min(seconds, RETRY_S))
    for module in private.modules_that_retry():
        module.time = soon


def _await_raylet() -> None:
    """Waits for a node's raylet as long as it takes, and not in steps of one second as Ray does."""
    services = private.services()
    get_node = services.get_node

    def get_registered_node(address: str, node_id: str) -> dict:
        deadline = time.monotonic() + REGISTER_TIMEOUT_S
        client, selectors = private.gcs_client(address), [private.node_selector(node_id)]
        while not client.get_all_node_info(REGISTER_TIMEOUT_S, node_selectors=selectors):
            if time.monotonic() > deadline:
                break
            time.sleep(RETRY_S)
        return get_node(address, node_id)

    services.get_node = get_registered_node


def _leave_out_services() -> None:
    """Starts the node without Ray's agents, API server and client server, which Slipway never uses.

    They serve dashboards, metrics, runtime environments and remote drivers. Without them a node is
    up in a third of the time.
    """
    services = private.services()
    start_process = services.start_ray_process

    def start_with_idle_agents(command: list[str], *args: Any, **options: Any) -> Any:
        return start_process([_with_idle_agent(word) for word in command], *args, **options)

    services.start_ray_process = start_with_idle_agents
    services.start_api_server = lambda *_args, **_options: (None, None)
    private.node_class().start_ray_client_server = lambda _node: None


def _with_idle_agent(argument: str) -> str:
    """Returns an argument of the raylet; the command of an agent becomes that of an idle one."""
    option, _, command = argument.partition("=")
    if option not in PORTS_OF_AGENTS:
        return argument
    words = dict(word.split("=", 1) for word in shlex.split(command) if "=" in word)
    place = [words["--session-dir"], words["--node-id"]]
    idle = [sys.executable, "-I", "-S", IDLE_AGENT, *place, *PORTS_OF_AGENTS[option]]
    return f"{option}={subprocess.list2cmdline(idle)}"


def _end_with_raylet() -> None:
    """Ends this process when its raylet has ended.

    `ray start --block` would keep waiting after an orderly exit of the raylet, as on SIGTERM.
    """
    raylet = None
    while raylet is None or _lives(raylet):
        time.sleep(POLL_INTERVAL_S)
        raylet = raylet or next(filter(_is_raylet, psutil.Process().children()), None)
    os._exit(1)


def _is_raylet(child: psutil.Process) -> bool:
    try:
        return child.name() == "raylet"
    except psutil.NoSuchProcess:
        return False


def _lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def _wait_for_port(address: str, port: int) -> None:
    """Waits until the head listens, for HEAD_TIMEOUT_S at most.

    A node that starts without a head gives up and logs that itself.
    """
    deadline = time.monotonic() + HEAD_TIMEOUT_S
    while time.monotonic() < deadline:
        try:
            socket.create_connection((address, port), 1.0).close()
            return
        except OSError:
            time.sleep(0.02)


if __name__ == "__main__":
    main()
