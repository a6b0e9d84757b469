"""Messages between the launcher's processes: frozen dataclasses, one JSON object per line.

The field "message" of the object has the kind of the message. Readers ignore other lines, which the
shell of a host may print, and messages of other kinds.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from launcher.core.errors import SlipwayError
from launcher.core.files import parse_object

T = TypeVar("T")


@dataclass(frozen=True)
class Message:
    """Base class of all messages. `kind` is the value of "message" on the wire."""

    kind: ClassVar[str]


AnyMessage = TypeVar("AnyMessage", bound=Message)


def encode(message: Message) -> bytes:
    """Returns a message as one line of JSON, with the newline."""
    return json.dumps({"message": message.kind, **to_wire(message)}).encode() + b"\n"


def to_wire(value: object) -> dict[str, Any]:
    """Returns the fields of a dataclass as JSON values."""
    return _adapter(type(value)).dump_python(value, mode="json")


def from_wire(
    value_type: type[T],
    wire: Mapping[str, Any],
    name: str,
    error: type[SlipwayError],
    remedy: str = "It probably comes from another version of Slipway",
) -> T:
    """Returns the dataclass with these fields, and ignores fields that it does not define.

    Raises `error` with `name`, which says what the fields are and where they come from, with the
    field that is missing or wrong, and with `remedy`.
    """
    try:
        return _adapter(value_type).validate_json(json.dumps(wire))
    except ValidationError as problem:
        raise error(f"{name} {_describe(problem)}. {remedy}") from None


class MessageReader(Generic[AnyMessage]):
    """Reads messages of the given types from one sender."""

    def __init__(
        self, types: Iterable[type[AnyMessage]], sender: str, error: type[SlipwayError]
    ) -> None:
        self._types = {message_type.kind: message_type for message_type in types}
        self._sender, self._error = sender, error

    def parse(self, line: bytes) -> AnyMessage | None:
        """Returns the message in a line, or None for a line without a message of these types.

        Raises the reader's error when a field is missing or wrong.
        """
        wire = parse_object(line) or {}
        kind = wire.get("message")
        message_type = self._types.get(kind) if isinstance(kind, str) else None
        if message_type is None:
            return None
        name = f"the message `{kind}` from {self._sender}"
        return from_wire(message_type, wire, name, self._error)


@cache
def _adapter(value_type: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(value_type)


def _describe(problem: ValidationError) -> str:
    """Describes the first wrong field, without its value, which may be secret."""
    first = problem.errors(include_input=False)[0]
    field = ".".join(map(str, first["loc"]))
    if first["type"] == "missing":
        return f"has no field `{field}`"
    return (
        f"has a wrong field `{field}` ({first['msg']})" if field else f"is wrong ({first['msg']})"
    )
