"""The order for a job of Ray, as one argument of its command: compressed JSON in base 64."""

import base64
import zlib
from dataclasses import dataclass
from typing import ClassVar

from launcher.cluster.schema import Attach
from launcher.core.errors import HostError
from launcher.core.messages import Message, MessageReader, encode
from launcher.providers.ray.host_protocol import RunOrder

MAX_BYTES = 96 << 10
"""Size limit of an order in bytes. Linux accepts 128 KiB as one argument of a command: see
MAX_ARG_STRLEN in execve(2)."""


@dataclass(frozen=True)
class CommandOrder(Message):
    """The order to execute a command of `launch`."""

    kind: ClassVar = "command"
    below: str
    """Working directory, relative to the code's root."""
    runs: str
    """Folder of the runs on the head, which may begin with ~."""
    args: list[str]


@dataclass(frozen=True)
class JobOrder(Message):
    """The order to drive a run."""

    kind: ClassVar = "job"
    below: str
    """Working directory, relative to the code's root."""
    run: RunOrder
    """The run; its `runs` may begin with ~."""
    provider: Attach
    """The cluster, as the head reaches it."""


def pack(order: Message) -> str:
    """Returns an order as one argument. Raises HostError when it is too long."""
    packed = base64.b64encode(zlib.compress(encode(order))).decode()
    if len(packed) > MAX_BYTES:
        raise HostError(
            f"the job is too large for Ray's Jobs API: {len(packed) >> 10} KiB compressed, at most "
            f"{MAX_BYTES >> 10} KiB. Shorten the job file"
        )
    return packed


def unpack(argument: str) -> CommandOrder | JobOrder:
    """Returns the order in an argument. Raises HostError when it has none."""
    reader = MessageReader((CommandOrder, JobOrder), "the launching machine", HostError)
    order = reader.parse(zlib.decompress(base64.b64decode(argument)))
    if order is None:
        raise HostError("the argument has no order that this version of Slipway knows")
    return order
