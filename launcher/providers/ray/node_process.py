"""The process that holds a Ray node: starts the node's raylet and GCS, and ends with them.

It does what `ray start --block` does, without the rest of Ray's command line: importing that takes
as long as importing Ray.
"""

import os
import shlex
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from launcher.providers.ray import private
from launcher.providers.ray.node import NODE_IS_UP, RETRY_S, NodeSpec

REGISTER_TIMEOUT_S = 120.0
"""Limit for a raylet, whose agents are up first: Ray's 30 s are too short on a busy machine."""
NEEDED = ("gcs_server", "raylet")
"""Names of the processes with which a node ends. `ray start --block` would wait on after an orderly
exit, as on SIGTERM."""
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


def become_node(node: NodeSpec) -> NoReturn:
    """Turns this process into the node; never returns."""
    code = 1
    try:
        output = os.open(node.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(output, 1)
        os.dup2(output, 2)
        os.environ.clear()
        os.environ.update(node.environment)
        run_node(node)
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_node(node: NodeSpec) -> None:
    """Starts the node's processes, and waits until this process is ended."""
    _end_with_processes()
    _retry_soon()
    _await_raylet()
    if not node.has_agents:
        _leave_out_services()
    private.start_node(node.parameters, is_head=node.is_head)
    print(NODE_IS_UP, flush=True)
    while True:
        signal.pause()


def _end_with_processes() -> None:
    """Ends this process when a process ends that the node needs; the kernel kills the others."""
    services = private.services()
    start_process = services.start_ray_process

    def start(command: list[str], kind: str, *args: Any, **options: Any) -> Any:
        info = start_process(command, kind, *args, **options)
        if kind in NEEDED:
            threading.Thread(target=_end_after, args=(kind, info.process), daemon=True).start()
        return info

    services.start_ray_process = start


def _end_after(kind: str, process: subprocess.Popen[bytes]) -> None:
    print(f"{kind} has ended with status {process.wait()}", flush=True)
    os._exit(1)


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
    # Ray looks whether a dashboard could run by importing all that it needs.
    private.utils().get_dashboard_dependency_error = lambda: None
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
