"""The coordinator of JAX: where it listens, as it has no authentication, and how long it waits."""

import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.support.processes import wait_until

START = """
import sys
from trainer.distributed import initialize
from trainer.distributed.process_env import Environment
from trainer.contract.config.job import Deadlines
where, deadlines = sys.argv[1], Deadlines(start_s=float(sys.argv[2]))
environment = Environment(coordinator=where, coordinator_bind=where, processes=2)
initialize.start(environment, deadlines, on_cpu=True)
"""
HOST, STRANGERS = "127.77.0.2", "127.0.0.1"


@pytest.fixture
def port() -> Iterator[int]:
    """The port of the coordinator of a process 0 that waits for its peer."""
    port, process = _start_process_0(start_s=300)
    try:
        yield port
    finally:
        process.kill()
        process.wait()


def test_the_coordinator_is_out_of_reach_at_other_addresses_of_its_host(port: int) -> None:
    wait_until(lambda: _is_reached(HOST, port))
    assert not _is_reached(STRANGERS, port)


@pytest.mark.slow
def test_a_process_that_never_comes_is_waited_for_as_long_as_the_job_says() -> None:
    _, process = _start_process_0(start_s=2)
    assert process.wait(60) == -signal.SIGABRT


def _start_process_0(start_s: float) -> "tuple[int, subprocess.Popen[bytes]]":
    with closing(socket.socket()) as probe:
        probe.bind((HOST, 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", START, f"{HOST}:{port}", str(start_s)]
    return port, subprocess.Popen(command, stderr=subprocess.DEVNULL)


def _is_reached(host: str, port: int) -> bool:
    with closing(socket.socket()) as client:
        return client.connect_ex((host, port)) == 0
