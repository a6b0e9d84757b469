"""The memory of an agent, over its sockets: what it keeps, and what it refuses."""

import json
import socket
from collections.abc import Iterator

import numpy as np
import pytest

from launcher.host.checkpoint_memory import CheckpointMemory
from tests.support.processes import wait_until
from trainer.checkpoint.memory_client import HostMemory, HostMemoryError, mapping, read_file
from trainer.contract.protocol.host_memory import Content, Shard, Stamp, StoreRequest, encode

SIZE = 1000
DATA = np.arange(SIZE, dtype=np.uint8)


@pytest.fixture
def memory() -> Iterator[CheckpointMemory]:
    """A memory that has room for four slots of SIZE bytes."""
    memory = CheckpointMemory("127.0.0.1", 4 * SIZE)
    yield memory
    memory.close()


def content(step: int, attempt: int = 1) -> Content:
    return Content(Stamp(attempt, step), 0, [Shard("a", ((0, SIZE),), 0, SIZE, 7)], "{}")


def save(memory: CheckpointMemory, step: int, kept: Stamp | None = None, attempt: int = 1) -> str:
    """Writes and commits a slot; returns its path."""
    client = HostMemory(memory.address, attempt)
    number, path = client.reserve(SIZE, kept)
    mapping(path, SIZE)[:] = DATA
    client.commit(number, content(step, attempt))
    return path


def steps(memory: CheckpointMemory, kind: str = "own", attempt: int = 1) -> set[int]:
    """The steps that the slots of a kind hold."""
    slots = HostMemory(memory.address, attempt).slots()
    return {slot.content.stamp.step for slot in slots if slot.kind == kind}


def test_what_is_committed_is_read_on_the_same_host_and_on_others(
    memory: CheckpointMemory,
) -> None:
    path = save(memory, 5)
    client = HostMemory(memory.address, 1)
    (slot,) = client.slots()
    assert (slot.kind, slot.path, slot.content) == ("own", path, content(5))
    parts = [(10, 5), (0, 3), (7, 0)]
    for found in (client.read(slot, parts), read_file(slot.path, parts)):
        assert [list(part) for part in found] == [[10, 11, 12, 13, 14], [0, 1, 2], []]


def test_a_slot_that_is_not_committed_holds_nothing(memory: CheckpointMemory) -> None:
    HostMemory(memory.address, 1).reserve(SIZE, None)
    assert steps(memory) == set()


def test_two_slots_are_kept_and_the_older_one_is_overwritten(memory: CheckpointMemory) -> None:
    for step in (5, 10, 15):
        save(memory, step)
    assert steps(memory) == {10, 15}


def test_the_checkpoint_that_must_be_kept_is_not_overwritten(memory: CheckpointMemory) -> None:
    save(memory, 5)
    save(memory, 10)
    save(memory, 15, kept=Stamp(1, 5))
    assert steps(memory) == {5, 15}


def test_a_copy_arrives_with_its_content(memory: CheckpointMemory) -> None:
    path = save(memory, 5)
    HostMemory(memory.address, 1).store(path, SIZE, None, content(5))
    assert steps(memory, "copy") == {5}
    copied = next(slot for slot in HostMemory(memory.address, 1).slots() if slot.kind == "copy")
    (data,) = HostMemory(memory.address, 1).read(copied, [(0, SIZE)])
    assert np.array_equal(data, DATA)


def test_a_copy_whose_sender_dies_holds_nothing(memory: CheckpointMemory) -> None:
    request = StoreRequest(
        token=memory.address.token, attempt=1, size=SIZE, kept=None, content=content(5)
    )
    with socket.create_connection(memory.address[:2]) as sender:
        sender.sendall(encode(request) + bytes(SIZE // 2))
    save(memory, 10)
    assert steps(memory, "copy") == set()


def test_an_earlier_attempt_is_refused(memory: CheckpointMemory) -> None:
    save(memory, 5, attempt=2)
    with pytest.raises(HostMemoryError, match="attempt 2 has taken over from attempt 1"):
        save(memory, 10, attempt=1)


def test_a_copy_of_an_attempt_that_is_overtaken_meanwhile_is_not_kept(
    memory: CheckpointMemory,
) -> None:
    request = StoreRequest(
        token=memory.address.token, attempt=1, size=SIZE, kept=None, content=content(5)
    )
    with socket.create_connection(memory.address[:2]) as sender:
        sender.sendall(encode(request) + bytes(SIZE // 2))
        wait_until(lambda: any(slot.is_busy for slot in memory._slots.all))
        save(memory, 10, attempt=2)
        sender.sendall(bytes(SIZE - SIZE // 2))
        assert "taken over" in json.loads(sender.makefile().readline())["error"]
    assert steps(memory, "copy", attempt=2) == set()


def test_more_than_is_planned_is_refused_and_nothing_is_lost(memory: CheckpointMemory) -> None:
    save(memory, 5)
    with pytest.raises(HostMemoryError, match=r"5,000 bytes exceed the 4,000 that are planned"):
        HostMemory(memory.address, 1).reserve(4 * SIZE, None)
    assert steps(memory) == {5}


def test_room_of_earlier_attempts_is_taken_except_for_what_is_kept(
    memory: CheckpointMemory,
) -> None:
    save(memory, 5)
    save(memory, 10)
    path = save(memory, 15)
    HostMemory(memory.address, 1).store(path, SIZE, None, content(15))
    HostMemory(memory.address, 1).store(path, SIZE, None, content(10))
    memory.set_limit(3 * SIZE)
    HostMemory(memory.address, 2).reserve(SIZE, kept=Stamp(1, 15))
    assert (steps(memory, attempt=2), steps(memory, "copy", attempt=2)) == ({15}, {15})


def test_a_request_without_the_token_is_refused(memory: CheckpointMemory) -> None:
    stranger = HostMemory(memory.address._replace(token="0" * 32), 1)
    with pytest.raises(HostMemoryError, match="wrong token"):
        stranger.slots()


@pytest.mark.parametrize("line", [b"GET / HTTP/1.1\r\n", b"{}\n", b'{"request": "list"}\n'])
def test_what_is_no_request_is_refused(memory: CheckpointMemory, line: bytes) -> None:
    with socket.create_connection(memory.address[:2]) as sender:
        sender.sendall(line)
        assert json.loads(sender.makefile().readline()) == {"error": "not a request"}


def test_a_slot_that_holds_another_step_by_now_is_not_read(memory: CheckpointMemory) -> None:
    save(memory, 5)
    (slot,) = HostMemory(memory.address, 1).slots()
    save(memory, 10)
    save(memory, 15)
    with pytest.raises(HostMemoryError, match="does not hold step 5"):
        HostMemory(memory.address, 1).read(slot, [(0, SIZE)])


def test_a_memory_that_is_gone_is_named() -> None:
    memory = CheckpointMemory("127.0.0.1", SIZE)
    memory.close()
    with pytest.raises(HostMemoryError, match=rf"127.0.0.1:{memory.address.port}: .*refused"):
        HostMemory(memory.address, 1).slots()
