"""What runs on every host: `python -m launcher.providers.ssh.host`, started over SSH.

It owns the host's Ray node through a reaper. The end of its input means that the launching machine
is gone. Before the run has begun that ends everything here. Afterwards the head goes on by itself:
it owns the run's `launch`, and all ends with that. The other hosts let go of their nodes, which end
when Ray's head has ended.
"""

import json
import os
import select
import shutil
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

from launcher.host.processes import Reaped, ReaperError, describe_status
from launcher.providers import simulated
from launcher.providers.errors import ProviderError
from launcher.providers.nodes import Nodes
from launcher.providers.ssh.orders import Order, Orders, Work, tell
from launcher.providers.workspace import free_port, private_folder, write_token
from launcher.runs import is_alive

HEADLESS_S = 20
"""A node without a head ends after so long."""
LAST_WORDS_S = 60.0
"""For a run whose Ray has ended on the head: to notice it and to say so."""
LOOK_S = 0.2
MORE_FLAGS = ["--dashboard-agent-listen-port=0"]
"""Somebody else's Ray may have the usual port."""
LAUNCH = "launch"


class Node:
    """The Ray node of this host; ends with this object, and with this process."""

    def __init__(self, order: Order) -> None:
        """Wait until it is up. Raises ProviderError, ReaperError."""
        self.folder = private_folder()
        self.reaped = Reaped(folders=[self.folder])
        self._is_up = threading.Event()
        threading.Thread(target=self._end_with_input, daemon=True).start()
        try:
            self.token_path = write_token(self.folder, order.token)
            self.head = order.head or (order.ip, free_port(order.ip))
            if order.head is None:
                tell(port=self.head[1])
            self._start(order)
        except BaseException:
            self.reaped.close()
            raise

    def _start(self, order: Order) -> None:
        environment = {
            **simulated.environment(self.token_path),
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEADLESS_S),
        }

        def make(process: int, generation: int) -> dict[str, Any]:
            node = simulated.host(
                order.world, process, generation, order.ip, self.head, self.folder, environment,
                is_head=order.head is None,
            )  # fmt: skip
            return {**node, "flags": [*node["flags"], *MORE_FLAGS]}

        nodes = Nodes(self.reaped, self.folder, environment, make, None)
        nodes.start(make(order.process, 1), hosts=0)
        nodes.wait_until_up(lambda text: None)
        self._is_up.set()
        tell(up=True)

    def _end_with_input(self) -> None:
        """While this host waits for its node it reads no orders."""
        poller = select.poll()
        poller.register(0, select.POLLHUP | select.POLLRDHUP)
        while not self._is_up.is_set():
            if poller.poll(1000 * LOOK_S):
                os._exit(1)


def serve_node(node: Node, orders: Orders) -> None:
    """Until the node ends, or the launching machine says so or is gone too early."""
    begun = False
    while not orders.over:
        for order in orders.wait(LOOK_S, node.reaped.fileno()):
            begun = begun or "begun" in order
            if "end" in order:
                return
        for _, status in exits(node.reaped):
            tell(failed=f"its Ray node {describe_status(status)}")
            return
    if begun:
        node.reaped.detach()


def serve_run(node: Node, orders: Orders) -> None:
    """Until the run is over; once its start has been told, no lost connection ends it."""
    run: Path | None = None
    told = alone = False
    give_up_at = float("inf")
    while (told or not orders.over) and time.monotonic() < give_up_at:
        if orders.over and not alone:
            alone = True
            leave_connection()
        for order in orders.wait(LOOK_S, node.reaped.fileno()):
            if "run" in order:
                run = start_run(node, Work.model_validate(order["run"]))
        for name, status in exits(node.reaped):
            if name == LAUNCH and run:
                end_run(node, run, status)
                return
            give_up_at = time.monotonic() + LAST_WORDS_S
        if run and not told and is_alive(run):
            told = True
            tell(running=True)


def leave_connection() -> None:
    """Go on as a process that its session does not wait for."""
    if os.fork():
        os._exit(0)
    os.setsid()
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    os.close(nothing)


def start_run(node: Node, work: Work) -> Path:
    """`launch` on the node's own Ray; returns the run's folder."""
    address = f"{node.head[0]}:{node.head[1]}"
    token_path = str(node.token_path)
    provider = {"kind": "attach", "address": address, "token_path": token_path, "own": True}
    cluster = node.folder / f"{work.cluster_name}.yaml"
    cluster.write_text(json.dumps({**work.cluster, "provider": provider}))
    if work.job is None:
        words = ["resume", work.name, *work.overrides]
    else:
        job = node.folder / "job.yaml"
        job.write_text(work.job)
        words = ["run", str(job), *(["--fresh"] * work.fresh)]
    words += ["--cluster", str(cluster), "--runs", work.runs]
    command = [sys.executable, "-m", "launcher", *words]
    environment = {**os.environ, **work.secrets}
    node.reaped.start(LAUNCH, command, environment, node.folder / "launch.log", Path.cwd())
    return Path(work.runs) / work.name


def end_run(node: Node, run: Path, status: int) -> None:
    """Keep what it printed, and tell it."""
    printed = node.folder / "launch.log"
    if run.is_dir():
        shutil.copyfile(printed, run / "logs" / printed.name)
    output = printed.read_text(errors="replace")
    tell(ended=os.waitstatus_to_exitcode(status), output=output)


def exits(reaped: Reaped) -> list[tuple[str, int]]:
    """The commands that have ended since, with their wait statuses."""
    answers = reaped.answers(0.0)
    if answers is None:
        raise ReaperError("the reaper of this host has ended")
    return [(answer["exited"], answer["status"]) for answer in answers if "exited" in answer]


def main() -> int:
    """A process that no end of the connection ends by itself."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    orders = Orders()
    while not (first := orders.wait(None)):
        if orders.over:
            return 1
    order = Order.model_validate(first[0]["node"])
    try:
        node = Node(order)
    except (ProviderError, ReaperError) as error:
        tell(failed=str(error))
        return 1
    try:
        serve = serve_run if order.head is None else serve_node
        serve(node, orders)
    finally:
        node.reaped.close()
    tell(gone=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
