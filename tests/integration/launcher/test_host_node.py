"""The Ray node of a host that another machine tells what to do: a real one."""

import os
import secrets
import signal
import subprocess
import sys

import pytest

from launcher.cluster.schema import Cluster
from launcher.core.errors import HostError
from launcher.core.messages import MessageReader, encode
from launcher.providers.ray.host_protocol import HeadPort, NodeOrder, NodeUp
from tests.support.assert_no_leftovers import Traces
from tests.support.processes import wait_until

CLUSTER = {"accelerator": "cpu", "hosts": 1, "devices_per_host": 1, "provider": {"kind": "local"}}


@pytest.mark.slow
def test_a_node_that_ends_while_it_starts_is_started_again(traces: Traces) -> None:
    """As on a host whose disk is slow: Ray waits 15 s for some of its own processes."""
    answers = MessageReader((HeadPort, NodeUp), "the host", HostError)
    ip = f"127.77.{secrets.randbelow(250)}.1"
    world = Cluster.model_validate(CLUSTER).world(simulated=True)
    order = NodeOrder(token=secrets.token_hex(32), process=0, world=world, ip=ip, head=None)

    def raylet() -> list[int]:
        commands = traces.processes().items()
        return [p for p, c in commands if "raylet/raylet" in c and ip in c]

    command = [sys.executable, "-m", "launcher.providers.ssh.host_session"]
    with subprocess.Popen(
        command, env=traces.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as host:
        assert host.stdin and host.stdout
        host.stdin.write(encode(order))
        host.stdin.flush()
        assert isinstance(answers.parse(host.stdout.readline()), HeadPort)
        wait_until(raylet)
        for process in raylet():
            os.kill(process, signal.SIGKILL)
        assert answers.parse(host.stdout.readline()) == NodeUp()
    traces.assert_nothing_left()
