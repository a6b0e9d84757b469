"""How a process finds the coordinator."""

import socket
import threading
import time
from collections.abc import Iterator

import pytest

from trainer.distributed.initialize import _wait_for_coordinator

DELAY_S = 0.3


@pytest.fixture
def late() -> Iterator[tuple[str, threading.Event]]:
    """An address at which something listens after a while, and the event that it does."""
    listens = threading.Event()
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))

        def listen() -> None:
            time.sleep(DELAY_S)
            listens.set()
            server.listen()

        thread = threading.Thread(target=listen)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}", listens
        thread.join()


def test_it_waits_until_the_coordinator_listens(late: tuple[str, threading.Event]) -> None:
    address, listens = late
    _wait_for_coordinator(address, limit_s=60.0)
    assert listens.is_set()


def test_it_leaves_a_coordinator_that_does_not_come_to_jax(
    late: tuple[str, threading.Event],
) -> None:
    address, listens = late
    _wait_for_coordinator(address, limit_s=DELAY_S / 10)
    assert not listens.is_set()
