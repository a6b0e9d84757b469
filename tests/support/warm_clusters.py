"""A warm cluster without Ray."""

import os
from pathlib import Path

import pytest

from launcher.cluster.schema import Local
from launcher.host.process_tree import ProcessTree
from launcher.providers.local import warm
from launcher.providers.ray.host_cluster import OwnedCluster
from launcher.providers.ray.node import NodeSpec
from launcher.providers.ray.node_group import Nodes
from tests.support.worlds import cpu_world

SETTINGS = warm.WarmSettings(cpu_world(2, 1), Local())


@pytest.fixture
def hosts(tmp_path: Path) -> OwnedCluster:
    """A cluster whose nodes are a sleeping process."""
    folder = tmp_path / "cluster"
    reaped = ProcessTree(folders=[folder])
    reaped.start("nodes", ["sleep", "1000"], dict(os.environ), folder / "log")

    def make(process: int, generation: int) -> NodeSpec:
        raise AssertionError("no node is started")

    nodes = Nodes(reaped, folder, {}, make, replace_after_s=None)
    return OwnedCluster("127.1.2.3:4", "127.1.2.3", folder / "token", reaped, nodes)
