"""The Ray node of a host that another machine controls, see host_protocol.py."""

import os
import select
import threading
from typing import Any

from launcher.core.formatting import describe_status
from launcher.host.process_tree import ProcessTree, ReaperError
from launcher.host.reaper_messages import Exited
from launcher.providers.ray import node_spec
from launcher.providers.ray.host_protocol import (
    EndNode,
    Failed,
    HeadPort,
    NodeOrder,
    NodeUp,
    Orders,
    RunBegun,
    send,
)
from launcher.providers.ray.node import NodeSpec
from launcher.providers.ray.node_group import Nodes
from launcher.providers.ray.workspace import free_port, private_folder, write_token

HEADLESS_S = 20
"""Seconds after which a node without a head ends."""
POLL_INTERVAL_S = 0.2


class Node:
    """The Ray node of this host. It ends with this object and with this process."""

    def __init__(self, order: NodeOrder) -> None:
        """Starts the node and waits until it is up. Raises HostError or ReaperError."""
        self.folder = private_folder()
        self.reaped = ProcessTree(folders=[self.folder])
        self._is_up = threading.Event()
        threading.Thread(target=self._end_with_input, daemon=True).start()
        try:
            self.token_path = write_token(self.folder, order.token)
            self.head = order.head or (order.ip, free_port(order.ip))
            if order.head is None:
                send(HeadPort(self.head[1]))
            self._start(order)
        except BaseException:
            self.reaped.close()
            raise

    def _start(self, order: NodeOrder) -> None:
        environment = {
            **node_spec.environment(self.token_path),
            "RAY_gcs_rpc_server_reconnect_timeout_s": str(HEADLESS_S),
        }

        def make(_: int, generation: int) -> NodeSpec:
            return node_spec.host(
                order.world, order.process, generation, order.ip, self.head, self.folder,
                environment, is_head=order.head is None,
            )  # fmt: skip

        nodes = Nodes(self.reaped, self.folder, environment, make, None)
        nodes.start(None, hosts=1)
        nodes.wait_until_up(lambda text: None)
        self._is_up.set()
        send(NodeUp())

    def _end_with_input(self) -> None:
        """Ends this process when standard input closes before the node is up.

        Until then, this host reads no orders.
        """
        poller = select.poll()
        poller.register(0, select.POLLHUP | select.POLLRDHUP)
        while not self._is_up.is_set():
            if poller.poll(1000 * POLL_INTERVAL_S):
                os._exit(1)


def serve_node(node: Node, orders: Orders[Any]) -> None:
    """Serves orders until the node ends, EndNode arrives or the launching machine is gone.

    In the last case the node continues if the run has begun.
    """
    begun = False
    while not orders.over:
        for order in orders.wait(POLL_INTERVAL_S, node.reaped.fileno()):
            begun = begun or isinstance(order, RunBegun)
            if isinstance(order, EndNode):
                return
        for ended in exits(node.reaped):
            send(Failed(f"its Ray node {describe_status(ended.status)}"))
            return
    if begun:
        node.reaped.detach()


def exits(reaped: ProcessTree) -> list[Exited]:
    """Returns the commands that have ended since the last call.

    Raises ReaperError when the reaper has ended.
    """
    answers = reaped.answers(0.0)
    if answers is None:
        raise ReaperError("the reaper of this host has ended")
    return [answer for answer in answers if isinstance(answer, Exited)]
