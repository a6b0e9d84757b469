"""Requests to the memory of a host's agent, in which in-memory checkpoints are kept."""

import json
import mmap
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from trainer.contract.protocol.host_memory import (
    LINE_BYTES,
    Address,
    CommitRequest,
    Content,
    ListRequest,
    ReadRequest,
    Request,
    ReserveRequest,
    Slot,
    Stamp,
    StoreRequest,
    encode,
)

TIMEOUT_S = 20.0
"""Seconds in which an agent must accept, send or take something."""


class HostMemoryError(Exception):
    """An agent's memory cannot be reached, or refuses a request."""


class HostMemory:
    """The memory of one agent, as an attempt sees it. Every method raises HostMemoryError."""

    def __init__(self, address: Address, attempt: int) -> None:
        self.address = address
        self._attempt = attempt

    def slots(self) -> list[Slot]:
        """Returns all committed slots."""
        request = ListRequest(token=self.address.token, attempt=self._attempt)
        with self._sent(request) as (answer, _):
            return [Slot.from_fields(fields) for fields in answer["slots"]]

    def reserve(self, size: int, kept: Stamp | None) -> tuple[int, str]:
        """Returns the number and the path of a slot of `size` bytes, to be written and committed.

        `kept` is the checkpoint that must not be overwritten.
        """
        request = ReserveRequest(
            token=self.address.token, attempt=self._attempt, size=size, kept=kept
        )
        with self._sent(request) as (answer, _):
            return answer["number"], answer["path"]

    def commit(self, number: int, content: Content) -> None:
        """Makes a written slot one that `slots` returns."""
        request = CommitRequest(
            token=self.address.token, attempt=self._attempt, number=number, content=content
        )
        with self._sent(request):
            pass

    def store(self, path: str, size: int, kept: Stamp | None, content: Content) -> None:
        """Copies the first `size` bytes of a file of this host to the agent's host."""
        request = StoreRequest(
            token=self.address.token,
            attempt=self._attempt,
            size=size,
            kept=kept,
            content=content,
        )
        with _translated(self.address), socket.create_connection(self._place, TIMEOUT_S) as sent:
            sent.sendall(encode(request))
            with Path(path).open("rb") as file:
                if size:  # sendfile takes 0 for "all"
                    sent.sendfile(file, 0, size)
            with sent.makefile("rb") as received:
                _answer(received.readline(LINE_BYTES))

    def read(self, slot: Slot, parts: Sequence[tuple[int, int]]) -> list[np.ndarray]:
        """Returns parts of a slot, given by offset and size, as arrays of bytes."""
        request = ReadRequest(
            token=self.address.token,
            attempt=self._attempt,
            number=slot.number,
            stamp=slot.content.stamp,
            parts=parts,
        )
        with self._sent(request) as (_, received):
            return [_received(received, size) for _, size in parts]

    @property
    def _place(self) -> tuple[str, int]:
        return self.address.host, self.address.port

    @contextmanager
    def _sent(self, request: Request) -> Iterator[tuple[dict[str, Any], Any]]:
        """Sends a request; yields the answer, and the file of the bytes that follow it."""
        with _translated(self.address), socket.create_connection(self._place, TIMEOUT_S) as sent:
            sent.sendall(encode(request))
            with sent.makefile("rb") as received:
                yield _answer(received.readline(LINE_BYTES)), received


def mapping(path: str, size: int) -> np.ndarray:
    """Returns the bytes of a reserved slot, to be written. Raises HostMemoryError."""
    try:
        with Path(path).open("r+b") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), size), np.uint8)
    except OSError as error:
        raise HostMemoryError(f"cannot map {path}: {error.strerror}") from error


def read_file(path: str, parts: Sequence[tuple[int, int]]) -> list[np.ndarray]:
    """Returns parts of a slot of this host. Raises HostMemoryError."""
    try:
        with Path(path).open("rb", buffering=0) as file:
            found = []
            for offset, size in parts:
                file.seek(offset)
                found.append(_received(file, size))
            return found
    except OSError as error:
        raise HostMemoryError(f"cannot read {path}: {error.strerror}") from error


def _received(file: Any, size: int) -> np.ndarray:
    """Reads `size` bytes. Raises HostMemoryError when there are fewer."""
    array = np.empty(size, np.uint8)
    left = array.data
    while left:
        count = file.readinto(left)
        if not count:
            raise HostMemoryError("the bytes of a checkpoint ended early")
        left = left[count:]
    return array


def _answer(line: bytes) -> dict[str, Any]:
    """Reads an answer. Raises HostMemoryError for a refusal, and without an answer."""
    if not line.endswith(b"\n"):
        raise HostMemoryError("the connection ended without an answer")
    answer = json.loads(line)
    if "error" in answer:
        raise HostMemoryError(answer["error"])
    return answer


@contextmanager
def _translated(address: Address) -> Iterator[None]:
    """Raises HostMemoryError in place of errors of the connection, and names the address."""
    try:
        yield
    except (OSError, HostMemoryError) as error:
        raise HostMemoryError(f"{address.host}:{address.port}: {error}") from error
