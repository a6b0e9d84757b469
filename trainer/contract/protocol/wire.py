"""Converts events to lines of JSON and back. The type of an event is in the field "event".

Reading is lenient. A field of the wrong type counts as absent. An event of an unknown type, or
without a required field, becomes an UnknownEvent. Both keep the value in `extra`, so no field of a
program is lost.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import MISSING, fields
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, NamedTuple, TypeVar, Union, get_args, get_origin

from trainer.contract.protocol.events import EVENT_TYPES, Event, UnknownEvent

AnyEvent = TypeVar("AnyEvent", bound=Event)
NO_TYPES = frozenset[type]()
_encoder = json.JSONEncoder(ensure_ascii=False, default=str)


class EventReader:
    """Reads events of the given types."""

    def __init__(self, types: Iterable[type[Event]]) -> None:
        self._types = {event_type.kind: event_type for event_type in types}

    def parse(self, line: str | bytes) -> Event | None:
        """Returns the event in a line, or None: a program may write anything."""
        try:
            wire = json.loads(line if isinstance(line, str) else line.decode())
        except (ValueError, RecursionError):
            return None
        return self.from_wire(wire) if isinstance(wire, dict) else None

    def from_wire(self, wire: Mapping[str, Any]) -> Event | None:
        """Returns the event with these fields, or None when "event" is not a text."""
        name = wire.get("event")
        if type(name) is not str:
            return None
        event_type = self._types.get(name)
        event = _read(event_type, wire) if event_type else None
        return event or _read(UnknownEvent, wire)


parse_event = EventReader(EVENT_TYPES).parse
"""Returns the event of a program in a line, or None. The launcher has events of its own besides."""


def to_wire(event: Event) -> dict[str, Any]:
    """Returns the fields of an event's line, without those that are None."""
    values = vars(event).items()
    known = {name: value for name, value in values if value is not None and name != "extra"}
    return {"event": event.kind, **event.extra, **known}


def encode(event: Event) -> str:
    """Returns an event as one line of JSON, without the newline."""
    return encode_fields(to_wire(event))


def encode_fields(wire: Mapping[str, Any]) -> str:
    """Returns the fields of an event as one line; a value that JSON lacks is written as text."""
    return _encoder.encode(wire)


class _Fields(NamedTuple):
    """The values that the fields of a type of event take, by the name of the field."""

    types: Mapping[str, frozenset[type]]
    """Types of the JSON value."""
    converters: Mapping[str, Callable[[Any], Any]]
    """Conversions of a value of the right JSON type; they raise ValueError."""
    required: frozenset[str]


def _read(event_type: type[AnyEvent], wire: Mapping[str, Any]) -> AnyEvent | None:
    """Returns an event of this type, or None when a required field is absent or wrong.

    Does not call the constructor of the frozen dataclass, which takes twice as long.
    """
    types, converters, required = _fields(event_type)
    known: dict[str, Any] = {}
    extra: dict[str, Any] = {}
    for name, value in wire.items():
        (known if type(value) in types.get(name, NO_TYPES) else extra)[name] = value
    for name, convert in converters.items():
        if known.get(name) is not None:
            try:
                known[name] = convert(known[name])
            except ValueError:
                extra[name] = known.pop(name)
    if not required <= known.keys():
        return None
    extra.pop("event", None)
    event = object.__new__(event_type)
    vars(event).update(known, extra=extra)
    return event


@cache
def _fields(event_type: type[Event]) -> _Fields:
    named = [one for one in fields(event_type) if one.name != "extra"]
    return _Fields(
        {one.name: frozenset(_json_types(one.type)) for one in named},
        {one.name: convert for one in named if (convert := _converter(one.type))},
        frozenset(one.name for one in named if one.default is MISSING),
    )


def _json_types(annotation: Any) -> Iterator[type]:
    """Yields the types of JSON values that a field with this annotation takes."""
    origin = get_origin(annotation)
    if origin in (Union, UnionType):
        for one in get_args(annotation):
            yield from _json_types(one)
    elif origin is Literal or _is_enum(annotation):
        yield str
    elif annotation is float:
        yield from (float, int)
    elif origin is tuple:
        yield list
    else:
        yield dict if origin is Mapping else annotation


def _converter(annotation: Any) -> Callable[[Any], Any] | None:
    """Returns the conversion for a field of which a JSON value has one of the right types."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (Union, UnionType):
        return next(filter(None, map(_converter, arguments)), None)
    if origin is Literal:
        return lambda value: arguments[arguments.index(value)]
    if origin is Mapping:
        types = frozenset(_json_types(arguments[1]))
        return lambda value: _check_values(value, types)
    if origin is tuple:
        types = frozenset(_json_types(arguments[0]))
        return lambda values: _as_tuple(values, types)
    return annotation if _is_enum(annotation) else None


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, Enum)


def _check_values(value: Mapping[str, Any], types: frozenset[type]) -> Mapping[str, Any]:
    if not all(type(one) in types for one in value.values()):
        raise ValueError("a value has the wrong type")
    return value


def _as_tuple(values: list[Any], types: frozenset[type]) -> tuple[Any, ...]:
    if not all(type(one) in types for one in values):
        raise ValueError("a value has the wrong type")
    return tuple(values)
