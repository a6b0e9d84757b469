"""`python -m launcher.providers.slurm.node_entrypoint`: the Ray node of a host, a task of `srun`.

See node_protocol.py for its messages. It forwards a SIGTERM from Slurm as one of them.
"""

import os
import re
import signal
import socket
import sys

from launcher.core.errors import HostError
from launcher.core.ipv4 import NEEDED, check_ipv4
from launcher.host.process_tree import ReaperError
from launcher.providers.ray.host_daemon import Node, serve_node
from launcher.providers.ray.host_protocol import Failed, NodeGone, NodeOrder, Orders, send
from launcher.providers.slurm.node_protocol import (
    HeadAddress,
    HostAddress,
    JobOrder,
    SignalReceived,
)
from launcher.runs.slurm_job import command


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: send(SignalReceived(number)))
    process, orders = int(os.environ["SLURM_PROCID"]), Orders((JobOrder, HeadAddress))
    try:
        ip = own_address(os.environ["SLURMD_NODENAME"])
        send(HostAddress(ip))
        node = Node(_node_order(orders, process, ip))
    except EOFError:
        return 1
    except (HostError, ReaperError, OSError) as error:
        send(Failed(str(error)))
        return 1
    try:
        serve_node(node, orders)
    finally:
        node.reaped.close()
    send(NodeGone())
    return 0


def own_address(node: str) -> str:
    """Returns the address by which Slurm reaches this host. Raises HostError, OSError."""
    found = re.search(r"\bNodeAddr=(\S+)", command("scontrol", "show", "node", node, "-o"))
    name = found[1] if found else node
    check_ipv4(name, f"node {node}")
    try:
        return socket.gethostbyname(name)
    except socket.gaierror as error:
        raise HostError(f"{name} has no IPv4 address ({error.strerror}). {NEEDED}") from None


def _node_order(orders: Orders[JobOrder | HeadAddress], process: int, ip: str) -> NodeOrder:
    """Waits for the orders of a task's node. Raises EOFError when the sender is gone before."""
    job: JobOrder | None = None
    head: tuple[str, int] | None = None
    while job is None or (head is None and process > 0):
        if orders.over:
            raise EOFError
        for order in orders.wait(None):
            match order:
                case JobOrder():
                    job = order
                case HeadAddress(ip=head_ip, port=port):
                    head = (head_ip, port)
    return NodeOrder(job.token, process, job.world, ip, head if process > 0 else None)


if __name__ == "__main__":
    sys.exit(main())
