"""What is known of Ray nodes without a question to Ray."""

import os
import signal
from pathlib import Path

from launcher.host.process_tree import ProcessTree
from launcher.providers.ray.node import NodeSpec
from launcher.providers.ray.node_group import Nodes
from tests.support.processes import wait_until


def test_nodes_whose_reaper_is_killed_have_no_head_any_more(tmp_path: Path) -> None:
    def make(process: int, generation: int) -> NodeSpec:
        raise AssertionError("no node is started")

    reaped = ProcessTree()
    nodes = Nodes(reaped, tmp_path, {}, make, None)
    assert not nodes.head_is_down
    os.kill(reaped.pid, signal.SIGKILL)
    wait_until(lambda: nodes.head_is_down, 20.0)
    assert reaped.close()
