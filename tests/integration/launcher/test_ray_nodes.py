"""What starts Ray nodes on this machine, with a few lines in place of Ray's own."""

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from launcher.providers.ray.node import NodeSpec

AT_ONCE, NODES, FAILS = 2, 6, 1
START = f"""
import sys, time
from launcher.providers.ray import node_process, node_starter
from launcher.providers.ray.node import NODE_IS_UP

def run_node(node):
    print(time.monotonic(), flush=True)
    time.sleep(0.3)
    if node.name == "node-{FAILS}":
        sys.exit(1)
    print(NODE_IS_UP, time.monotonic(), flush=True)
    time.sleep(2.0)

node_process.run_node = run_node
node_starter.AT_ONCE = {AT_ONCE}
node_starter.main()
"""


def test_few_nodes_start_at_once_and_one_that_fails_holds_up_nobody(tmp_path: Path) -> None:
    """The third waits until the first is up, and so on: two that are on their way are enough."""
    logs = [tmp_path / f"{number}.log" for number in range(NODES)]
    nodes = [
        NodeSpec(
            name=f"node-{number}",
            is_head=False,
            parameters={},
            folder=str(tmp_path),
            environment={},
            log=str(log),
            after=None,
            has_agents=True,
        )
        for number, log in enumerate(logs)
    ]
    listing = tmp_path / "nodes.json"
    listing.write_text(json.dumps([asdict(node) for node in nodes]))
    command = [sys.executable, "-c", START, str(listing)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    began = {number: float(log.read_text().split()[0]) for number, log in enumerate(logs)}
    up = {n: float(log.read_text().split()[-1]) for n, log in enumerate(logs) if n != FAILS}
    for number in range(AT_ONCE, NODES):
        coming = [n for n in range(number) if n != FAILS and up[n] > began[number]]
        assert len(coming) < AT_ONCE
    ended = [json.loads(line)["ended"] for line in done.stdout.splitlines()]
    assert sorted(ended) == [node.name for node in nodes]
