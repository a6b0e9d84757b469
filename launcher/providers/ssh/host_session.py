"""The process on every host: `python -m launcher.providers.ssh.host_session`, started over SSH.

It owns the host's Ray node through a reaper. The end of its input means that the launching machine
is gone. Before the run has begun, that ends everything on this host. Afterwards the head continues
by itself: it owns the run's `launch`, and everything ends with that. The other hosts release their
nodes, which end when Ray's head has ended.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from launcher.cluster.schema import Attach
from launcher.core.errors import HostError
from launcher.host.process_tree import ReaperError
from launcher.providers.ray.host_daemon import POLL_INTERVAL_S, Node, exits, serve_node
from launcher.providers.ray.host_protocol import (
    DoctorOrder,
    EndNode,
    Failed,
    LaunchEnded,
    NodeGone,
    NodeOrder,
    Orders,
    RunBegun,
    RunOrder,
    RunStarted,
    send,
)
from launcher.runs.folder import is_alive

REPORT_TIMEOUT_S = 60.0
"""Seconds for a run to notice and report that its Ray has ended on the head."""
LAUNCH = "launch"

SshOrder = NodeOrder | RunOrder | DoctorOrder | RunBegun | EndNode
ORDER_TYPES = (NodeOrder, RunOrder, DoctorOrder, RunBegun, EndNode)


def serve_run(node: Node, orders: Orders[SshOrder]) -> None:
    """Serves until the run is over. A lost connection ends it only before its start is reported."""
    run: Path | None = None
    is_reported = alone = False
    give_up_at = float("inf")
    while (is_reported or not orders.over) and time.monotonic() < give_up_at:
        if orders.over and not alone:
            alone = True
            leave_connection()
        for order in orders.wait(POLL_INTERVAL_S, node.reaped.fileno()):
            match order:
                case RunOrder():
                    run = start_run(node, order)
                case DoctorOrder():
                    start_doctor(node, order)
                case _:
                    pass
        for ended in exits(node.reaped):
            if ended.name == LAUNCH:
                end_run(node, run, ended.status)
                return
            give_up_at = time.monotonic() + REPORT_TIMEOUT_S
        if run and not is_reported and is_alive(run):
            is_reported = True
            send(RunStarted())


def leave_connection() -> None:
    """Continues as a process that the SSH session does not wait for."""
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


def start_run(node: Node, order: RunOrder) -> Path:
    """Starts `launch` on the node's own Ray; returns the run's folder."""
    start(node, order.arguments(node.folder, own_ray(node)), order.environment)
    return Path(order.runs) / order.name


def start_doctor(node: Node, order: DoctorOrder) -> None:
    """Starts `launch doctor` on the node's own Ray."""
    start(node, ["doctor", "-c", order.cluster_file(node.folder, own_ray(node)), "-o", "json"], {})


def own_ray(node: Node) -> Attach:
    """Returns the node's own Ray as the provider of a cluster file."""
    address, token_path = f"{node.head[0]}:{node.head[1]}", str(node.token_path)
    return Attach(kind="attach", address=address, token_path=token_path, own=True)


def start(node: Node, arguments: list[str], more: Mapping[str, str]) -> None:
    command, environment = [sys.executable, "-m", "launcher", *arguments], {**os.environ, **more}
    node.reaped.start(LAUNCH, command, environment, node.folder / "launch.log", Path.cwd())


def end_run(node: Node, run: Path | None, status: int) -> None:
    """Sends the exit code and output of `launch`, and keeps the output in the run's logs."""
    printed = node.folder / "launch.log"
    if run is not None and run.is_dir():
        shutil.copyfile(printed, run / "logs" / printed.name)
    output = printed.read_text(errors="replace")
    send(LaunchEnded(os.waitstatus_to_exitcode(status), output))


def main() -> int:
    """Runs the session. It ignores SIGHUP: the end of the connection alone does not end it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    orders = Orders(ORDER_TYPES)
    try:
        order = wait_for_node_order(orders)
        if order is None:
            return 1
        node = Node(order)
    except (HostError, ReaperError) as error:
        send(Failed(str(error)))
        return 1
    try:
        serve = serve_run if order.head is None else serve_node
        serve(node, orders)
    except HostError as error:
        send(Failed(str(error)))
    finally:
        node.reaped.close()
    send(NodeGone())
    return 0


def wait_for_node_order(orders: Orders[SshOrder]) -> NodeOrder | None:
    """Waits for the order to start the node; returns None when the sender is gone before."""
    while not orders.over:
        for order in orders.wait(None):
            if isinstance(order, NodeOrder):
                return order
    return None


if __name__ == "__main__":
    sys.exit(main())
