"""The memory in which an agent keeps in-memory checkpoints of the processes of a run.

It belongs to the agent, so that it outlives a program. The kernel frees it when the agent ends,
whatever ends the agent: the slots are files without a name, see memfd_create(2).
"""

import hmac
import json
import mmap
import os
import secrets
import socket
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from trainer.contract.protocol.host_memory import (
    LINE_BYTES,
    SLOTS,
    Address,
    CommitRequest,
    Content,
    Kind,
    ListRequest,
    ReadRequest,
    Request,
    ReserveRequest,
    Slot,
    Stamp,
    StoreRequest,
    decode,
)

IDLE_TIMEOUT_S = 30.0
"""Seconds after which a connection that sends or takes nothing is closed."""


class RefusedError(Exception):
    """A request that cannot be served, with the reason."""


@dataclass
class _Memory:
    """A slot, and what it holds."""

    number: int
    kind: Kind
    fd: int
    size: int = 0
    mapped: memoryview = field(default_factory=lambda: memoryview(bytearray()))
    """The bytes of the slot."""
    content: Content | None = None
    """None while the slot is empty or being written."""
    is_busy: bool = False
    """Whether a connection writes it."""

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    def resize(self, size: int) -> None:
        if self.size != size:
            os.ftruncate(self.fd, size)
            self.size = size
            self.mapped = memoryview(mmap.mmap(self.fd, size) if size else b"")


@dataclass
class _Slots:
    """All slots; every method needs the lock."""

    limit_bytes: int
    all: list[_Memory] = field(default_factory=list[_Memory])
    attempt: int = 0
    """The latest attempt that has sent a request."""

    def enter(self, attempt: int) -> None:
        """Raises RefusedError when a later attempt has sent a request."""
        if attempt < self.attempt:
            raise RefusedError(f"attempt {self.attempt} has taken over from attempt {attempt}")
        self.attempt = attempt

    def free(self, kind: Kind, size: int, kept: Stamp | None) -> _Memory:
        """Returns a slot to overwrite. Raises RefusedError when the memory has no room for it."""
        slot = self._unused(kind) or self._oldest(kind, kept)
        if slot is None:
            raise RefusedError("both slots are in use")
        others = [one for one in self.all if one is not slot]
        if self._total(size, others) > self.limit_bytes:
            self._empty_earlier(others, kept)
        total = self._total(size, others)
        if total > self.limit_bytes:
            raise RefusedError(f"{total:,} bytes exceed the {self.limit_bytes:,} that are planned")
        slot.content = None
        slot.resize(size)
        return slot

    @staticmethod
    def _total(size: int, others: Sequence[_Memory]) -> int:
        return size + sum(one.size for one in others)

    def _empty_earlier(self, slots: Sequence[_Memory], kept: Stamp | None) -> None:
        """Frees slots of earlier attempts: another number of hosts has shards of another size."""
        for slot in slots:
            stamp = slot.content and slot.content.stamp
            if stamp and stamp.attempt < self.attempt and stamp != kept and not slot.is_busy:
                slot.content = None
                slot.resize(0)

    def _unused(self, kind: Kind) -> _Memory | None:
        slots = [one for one in self.all if one.kind == kind]
        empty = [one for one in slots if one.content is None and not one.is_busy]
        if not empty and len(slots) < SLOTS:
            empty = [_Memory(len(self.all), kind, os.memfd_create(f"slipway-{kind}"))]
            self.all += empty
        return empty[0] if empty else None

    def _oldest(self, kind: Kind, kept: Stamp | None) -> _Memory | None:
        """Returns the slot with the oldest checkpoint, except for the one that must be kept."""
        found = [
            (one.content.stamp, one.number, one)
            for one in self.all
            if one.kind == kind and one.content is not None and one.content.stamp != kept
        ]
        return min(found)[2] if found else None

    def holding(self, number: int, stamp: Stamp) -> _Memory:
        """Returns a committed slot. Raises RefusedError when it holds something else."""
        slot = self.all[number] if 0 <= number < len(self.all) else None
        if slot is None or slot.content is None or slot.content.stamp != stamp:
            raise RefusedError(f"slot {number} does not hold step {stamp.step}")
        return slot


class CheckpointMemory:
    """Serves the slots of one host to the processes of the run."""

    def __init__(self, host: str, limit_bytes: int) -> None:
        """Listens at the address `host`, on a free port; the slots have `limit_bytes` at most."""
        self._slots, self._lock = _Slots(limit_bytes), threading.Lock()
        self._server = socket.create_server((host, 0))
        self.address = Address(host, self._server.getsockname()[1], secrets.token_hex(16))
        threading.Thread(target=self._accept, name="memory", daemon=True).start()

    def set_limit(self, limit_bytes: int) -> None:
        """Sets the size that all slots together can have; an attempt on fewer hosts needs more."""
        with self._lock:
            self._slots.limit_bytes = limit_bytes

    def close(self) -> None:
        """Stops listening and frees all slots."""
        self._server.shutdown(socket.SHUT_RDWR)  # ends the `accept` that waits
        self._server.close()
        with self._lock:
            for slot in self._slots.all:
                os.close(slot.fd)
            self._slots.all.clear()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        connection.settimeout(IDLE_TIMEOUT_S)
        with connection, connection.makefile("rb") as received:
            try:
                request = self._request(received.readline(LINE_BYTES))
                answer, send = self._answer(request, received)
            except RefusedError as refused:
                answer, send = {"error": str(refused)}, None
            except OSError:
                return
            try:
                connection.sendall(json.dumps(answer).encode() + b"\n")
                if send is not None:
                    send(connection)
            except OSError:
                pass

    def _request(self, line: bytes) -> Request:
        try:
            request = decode(line)
        except (ValueError, KeyError, TypeError):
            raise RefusedError("not a request") from None
        if not hmac.compare_digest(request.token, self.address.token):
            raise RefusedError("wrong token")
        with self._lock:
            self._slots.enter(request.attempt)
        return request

    def _answer(
        self, request: Request, received: BinaryIO
    ) -> tuple[dict[str, Any], Callable[[socket.socket], None] | None]:
        """Returns the answer, and what sends the bytes that follow it, if any do."""
        match request:
            case ListRequest():
                return {"slots": self._listed()}, None
            case ReserveRequest():
                with self._lock:
                    slot = self._slots.free("own", request.size, request.kept)
                return {"number": slot.number, "path": slot.path}, None
            case CommitRequest():
                with self._lock:
                    self._slots.all[request.number].content = request.content
                return {}, None
            case StoreRequest():
                self._store(request, received)
                return {}, None
            case ReadRequest():
                with self._lock:
                    slot = self._slots.holding(request.number, request.stamp)
                return {}, lambda connection: _send(connection, slot.fd, request.parts)
            case _:
                raise RefusedError("not a request")

    def _listed(self) -> list[dict[str, Any]]:
        with self._lock:
            return [
                asdict(Slot(one.number, one.kind, one.path, one.content))
                for one in self._slots.all
                if one.content is not None
            ]

    def _store(self, request: StoreRequest, received: BinaryIO) -> None:
        """Receives the bytes of a copy. Raises RefusedError when they do not all arrive."""
        with self._lock:
            slot = self._slots.free("copy", request.size, request.kept)
            slot.is_busy = True
        try:
            complete = received.readinto(slot.mapped) == request.size  # type: ignore[attr-defined]
            with self._lock:
                self._slots.enter(request.attempt)
                if complete:
                    slot.content = request.content
        finally:
            slot.is_busy = False
        if not complete:
            raise RefusedError("the connection ended before all bytes had arrived")


def _send(connection: socket.socket, fd: int, parts: Any) -> None:
    with open(fd, "rb", closefd=False) as file:
        for offset, size in parts:
            if size:  # sendfile takes 0 for "all"
                connection.sendfile(file, offset, size)
