"""In-memory checkpoints: the requests of a process to the memory that a host's agent keeps.

A connection carries one request. It is a line of JSON, followed by the bytes of a `StoreRequest`.
The answer is a line of JSON too, followed by the bytes that a `ReadRequest` asks for.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, Self

Kind = Literal["own", "copy"]
"""`own`: shards of the process on this host; `copy`: shards of a process on another host."""
SLOTS = 2
"""Slots of each kind: one can be overwritten while the other one is the newest complete one."""
LINE_BYTES = 64 * 2**20
"""The longest line that is read."""


class Address(NamedTuple):
    """The address of an agent's memory, and the token that each request must have."""

    host: str
    port: int
    token: str

    def __str__(self) -> str:
        return f"{self.token}@{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` made."""
        token, _, place = text.partition("@")
        host, _, port = place.rpartition(":")
        return cls(host, int(port), token)


class Stamp(NamedTuple):
    """The order of in-memory checkpoints: a later attempt counts more than a later step."""

    attempt: int
    step: int


class Shard(NamedTuple):
    """A part of an array in a slot."""

    name: str
    index: tuple[tuple[int, int], ...]
    """First position and the one after the last, in each dim of the array."""
    offset: int
    """First byte in the slot."""
    size: int
    """Number of bytes."""
    digest: int
    """Its part of the array's digest: the sum over all shards of an array, modulo 2^32."""


@dataclass(frozen=True)
class Content:
    """What a committed slot holds."""

    stamp: Stamp
    process: int
    """The process whose shards these are."""
    shards: Sequence[Shard]
    metadata: str
    """The JSON text of a CheckpointMetadata, whose arrays have no digests: shards have them."""

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        shards = [
            Shard(name, tuple((start, stop) for start, stop in index), *numbers)
            for name, index, *numbers in fields["shards"]
        ]
        return cls(Stamp(*fields["stamp"]), fields["process"], shards, fields["metadata"])


@dataclass(frozen=True)
class Slot:
    """A committed slot of an agent."""

    number: int
    kind: Kind
    path: str
    """The file that a process on the same host can open."""
    content: Content

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        return cls(
            fields["number"], fields["kind"], fields["path"], Content.from_fields(fields["content"])
        )


@dataclass(frozen=True, kw_only=True)
class Request:
    """The fields of every request."""

    request: ClassVar[str]
    token: str
    attempt: int
    """Attempt of the process. After a request of a later attempt, it is refused."""


@dataclass(frozen=True, kw_only=True)
class ListRequest(Request):
    """Asks for all committed slots: the answer has `slots`."""

    request: ClassVar = "list"


@dataclass(frozen=True, kw_only=True)
class ReserveRequest(Request):
    """Asks for a slot of the kind `own`, to write it: the answer has its `number` and `path`."""

    request: ClassVar = "reserve"
    size: int
    """Bytes of the slot."""
    kept: Stamp | None
    """The checkpoint that must not be overwritten."""


@dataclass(frozen=True, kw_only=True)
class CommitRequest(Request):
    """Says that a reserved slot is written."""

    request: ClassVar = "commit"
    number: int
    content: Content


@dataclass(frozen=True, kw_only=True)
class StoreRequest(Request):
    """Stores the following bytes in a slot of the kind `copy`, and commits it."""

    request: ClassVar = "store"
    size: int
    kept: Stamp | None
    content: Content


@dataclass(frozen=True, kw_only=True)
class ReadRequest(Request):
    """Asks for parts of a slot: the bytes follow the answer, one part after the other."""

    request: ClassVar = "read"
    number: int
    stamp: Stamp
    """The checkpoint that the slot must hold."""
    parts: Sequence[tuple[int, int]]
    """Offset and size of each, in bytes."""


def encode(request: Request) -> bytes:
    """Returns the line of a request."""
    return json.dumps({"request": request.request, **asdict(request)}).encode() + b"\n"


def decode(line: bytes) -> Request:
    """Reads the line of a request. Raises ValueError, KeyError, TypeError for any other line."""
    fields = json.loads(line)
    request = REQUESTS[fields.pop("request")]
    for name in ("kept", "stamp"):
        if fields.get(name) is not None:
            fields[name] = Stamp(*fields[name])
    if "content" in fields:
        fields["content"] = Content.from_fields(fields["content"])
    return request(**fields)


REQUESTS: dict[str, type[Request]] = {
    one.request: one
    for one in (ListRequest, ReserveRequest, CommitRequest, StoreRequest, ReadRequest)
}
