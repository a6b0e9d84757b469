"""`python -m launcher.providers.slurm.node_entrypoint`: the Ray node of a host, a task of `srun`.

All tasks read the same orders: {"node": {...}} for all, {"head": [address, port]} once the first
task has reported its port. A SIGTERM from Slurm is forwarded as {"signal": number}.
"""

import os
import re
import signal
import socket
import sys
from typing import Any

from launcher.core.errors import HostError
from launcher.core.ipv4 import NEEDED, check_ipv4
from launcher.host.process_tree import ReaperError
from launcher.providers.ray.host_daemon import Node, serve_node
from launcher.providers.ray.host_protocol import Order, Orders, send
from launcher.runs.slurm_job import command


def main() -> int:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda number, _: send(signal=int(number)))
    process, orders = int(os.environ["SLURM_PROCID"]), _Orders()
    try:
        ip = own_address(os.environ["SLURMD_NODENAME"])
        send(address=ip)
        common = orders.value("node")
        head = None if process == 0 else tuple(orders.value("head"))
        node = Node(Order(**common, process=process, ip=ip, head=head))
    except EOFError:
        return 1
    except (HostError, ReaperError, OSError) as error:
        send(failed=str(error))
        return 1
    try:
        serve_node(node, orders)
    finally:
        node.reaped.close()
    send(gone=True)
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


class _Orders(Orders):
    def __init__(self) -> None:
        super().__init__()
        self._values: dict[str, Any] = {}

    def value(self, name: str) -> Any:
        """Waits for an order and returns its value. Raises EOFError when the sender is gone."""
        while name not in self._values:
            if self.over:
                raise EOFError
            for order in self.wait(None):
                self._values.update(order)
        return self._values[name]


if __name__ == "__main__":
    sys.exit(main())
