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
from typing import Any

from launcher.core.errors import HostError
from launcher.host.process_tree import ReaperError
from launcher.providers.ray.host_daemon import POLL_INTERVAL_S, Node, exits, serve_node
from launcher.providers.ray.host_protocol import DoctorOrder, Order, Orders, RunOrder, send
from launcher.runs.directory import is_alive

LAST_WORDS_S = 60.0
"""Seconds for a run to notice and report that its Ray has ended on the head."""
LAUNCH = "launch"


def serve_run(node: Node, orders: Orders) -> None:
    """Serves until the run is over. A lost connection ends it only before its start is reported."""
    run: Path | None = None
    is_reported = alone = False
    give_up_at = float("inf")
    while (is_reported or not orders.over) and time.monotonic() < give_up_at:
        if orders.over and not alone:
            alone = True
            leave_connection()
        for order in orders.wait(POLL_INTERVAL_S, node.reaped.fileno()):
            if "run" in order:
                run = start_run(node, RunOrder.model_validate(order["run"]))
            if "look" in order:
                look(node, DoctorOrder.model_validate(order["look"]))
        for name, status in exits(node.reaped):
            if name == LAUNCH:
                end_run(node, run, status)
                return
            give_up_at = time.monotonic() + LAST_WORDS_S
        if run and not is_reported and is_alive(run):
            is_reported = True
            send(running=True)


def leave_connection() -> None:
    """Continues as a process that the SSH session does not wait for."""
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


def start_run(node: Node, work: RunOrder) -> Path:
    """Starts `launch` on the node's own Ray; returns the run's folder."""
    start(node, work.words(node.folder, own_ray(node)), work.environment)
    return Path(work.runs) / work.name


def look(node: Node, place: DoctorOrder) -> None:
    """Starts `launch doctor` on the node's own Ray."""
    start(node, ["doctor", "-c", place.cluster_file(node.folder, own_ray(node)), "-o", "json"], {})


def own_ray(node: Node) -> dict[str, Any]:
    """Returns the node's own Ray as the provider of a cluster file."""
    address, token_path = f"{node.head[0]}:{node.head[1]}", str(node.token_path)
    return {"kind": "attach", "address": address, "token_path": token_path, "own": True}


def start(node: Node, words: list[str], more: Mapping[str, str]) -> None:
    command, environment = [sys.executable, "-m", "launcher", *words], {**os.environ, **more}
    node.reaped.start(LAUNCH, command, environment, node.folder / "launch.log", Path.cwd())


def end_run(node: Node, run: Path | None, status: int) -> None:
    """Sends the exit code and output of `launch`, and keeps the output in the run's logs."""
    printed = node.folder / "launch.log"
    if run is not None and run.is_dir():
        shutil.copyfile(printed, run / "logs" / printed.name)
    output = printed.read_text(errors="replace")
    send(ended=os.waitstatus_to_exitcode(status), output=output)


def main() -> int:
    """Runs the session. It ignores SIGHUP: the end of the connection alone does not end it."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    orders = Orders()
    while not (first := orders.wait(None)):
        if orders.over:
            return 1
    order = Order.model_validate(first[0]["node"])
    try:
        node = Node(order)
    except (HostError, ReaperError) as error:
        send(failed=str(error))
        return 1
    try:
        serve = serve_run if order.head is None else serve_node
        serve(node, orders)
    finally:
        node.reaped.close()
    send(gone=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
