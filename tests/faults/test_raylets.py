"""A Ray node of this machine is lost however its raylet ends, and replaced."""

import os
import signal
import time

import psutil
import pytest

from launcher.cluster.schema import find_cluster
from launcher.providers.local import provider
from tests.support.processes import wait_until
from tests.support.sampling import sampled

pytestmark = pytest.mark.faults
SIGNALS = {number.name: number for number in (signal.SIGKILL, signal.SIGTERM)}


def raylet(reaper: int) -> int:
    """Of the only host."""
    for process in psutil.Process(reaper).children(recursive=True):
        if process.name() == "raylet" and "--node-name=host-0000" in process.cmdline():
            return process.pid
    raise LookupError("no raylet")


@pytest.mark.parametrize("number", sampled(SIGNALS, ("SIGKILL",)))
def test_a_node_whose_raylet_ended_is_replaced(number: signal.Signals) -> None:
    """Also one that ends in order, for which `ray start --block` would wait on."""
    world = find_cluster("local").value.world(simulated=False)
    with provider.start(world) as hosts:
        nodes, reaped = hosts.nodes, hosts.reaped
        os.kill(raylet(reaped.pid), number)
        wait_until(lambda: not nodes.alive(), 30.0)
        nodes.replace_lost(time.monotonic())
        wait_until(lambda: nodes.alive() == {0})
