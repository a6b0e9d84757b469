"""`python -m launcher.providers.ray.node_starter NODES.json`: starts Ray nodes.

A child of the reaper. It imports Ray once and forks once per node; see node_process.py. Prints one
JSON line when a node has ended.
"""

import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from launcher.host.reaper import die_with_parent
from launcher.providers.ray import private
from launcher.providers.ray.node import NodeSpec, is_up
from launcher.providers.ray.node_process import become_node

HEAD_TIMEOUT_S = 90.0
POLL_INTERVAL_S = 0.2
AT_ONCE = 2 * len(os.sched_getaffinity(0))
"""Maximum number of nodes that start concurrently.

If 64 start together on two cores, Ray gives up on each before it is up.
"""


def main() -> None:
    """Starts the nodes in the file's order, the head first, AT_ONCE at a time.

    Returns when all have ended.
    """
    private.import_node()
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
            become_node(node)
        running[pid] = node
    while running:
        _note_end(running, 0)


def _note_end(running: dict[int, NodeSpec], options: int) -> None:
    """Waits for a node to end and prints that it has. WNOHANG skips the wait."""
    pid, status = os.waitpid(-1, options)
    if pid in running:
        print(json.dumps({"ended": running.pop(pid).name, "status": status}), flush=True)


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
