"""An event and its line convert to each other, and no field of any program is lost."""

import ast
import dataclasses
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import UnionType
from typing import Any, get_args, get_origin

import pytest
from hypothesis import given
from hypothesis import strategies as st

import trainer
from launcher.commands.field_docs import field_docs
from launcher.core.events import EVENT_TYPES, LAUNCHER_EVENT_TYPES, parse_event
from trainer.contract.protocol import environment, events, wire
from trainer.contract.protocol.events import (
    EvalEvent,
    Event,
    HeartbeatEvent,
    PhaseEvent,
    StepEvent,
    UnknownEvent,
    WrongHostEvent,
)

numbers = st.integers(-(10**9), 10**9) | st.floats(allow_nan=False)
texts = st.text(max_size=20)
scalars = st.none() | st.booleans() | numbers | texts
anything = st.recursive(
    scalars, lambda inner: st.lists(inner) | st.dictionaries(texts, inner), max_leaves=5
)


def values_of(annotation: Any) -> st.SearchStrategy[Any]:
    """Values that a field with this annotation takes."""
    if annotation is float:
        return numbers
    if get_origin(annotation) is Mapping:
        return st.dictionaries(texts, values_of(get_args(annotation)[1]))
    if get_origin(annotation) is UnionType:
        return st.one_of([values_of(one) for one in get_args(annotation)])
    return st.from_type(annotation)


@st.composite
def any_known_event(draw: Callable[..., Any]) -> Event:
    event_type = draw(st.sampled_from(EVENT_TYPES))
    known = {
        one.name: draw(values_of(one.type))
        for one in dataclasses.fields(event_type)
        if one.name != "extra"
    }
    names = texts.filter(lambda name: name not in known and name != "event")
    return event_type(**known, extra=draw(st.dictionaries(names, anything)))


names_of_fields = sorted({one.name for each in EVENT_TYPES for one in dataclasses.fields(each)})
any_object = st.dictionaries(st.sampled_from([*names_of_fields, "x"]), anything).flatmap(
    lambda fields: st.sampled_from([one.kind for one in EVENT_TYPES] + ["mine", "unknown"]).map(
        lambda name: {**fields, "event": name}
    )
)


@given(any_known_event())
def test_an_event_is_read_from_its_own_line(event: Event) -> None:
    assert parse_event(wire.encode(event)) == event


@given(any_object)
def test_any_object_that_names_its_event_is_read_and_keeps_its_fields(fields: dict) -> None:
    event = parse_event(json.dumps(fields))
    assert event is not None
    lines = {n: [*v] if isinstance(v, tuple) else v for n, v in wire.to_wire(event).items()}
    kept = {name: value for name, value in lines.items() if value is not None}
    assert kept == {name: value for name, value in fields.items() if value is not None}
    assert parse_event(wire.encode(event)) == event


@given(texts | anything.map(json.dumps), st.integers(0, 50))
def test_any_line_is_an_event_or_none(line: str, cut: int) -> None:
    assert isinstance(parse_event(line), Event | None)
    assert isinstance(parse_event(line.encode()[:cut]), Event | None)


@pytest.mark.parametrize("line", [b"junk", b"[1]", b"{}", b'{"event": 1}', b"[" * 60000, b"\xff"])
def test_a_line_without_an_event_is_none(line: bytes) -> None:
    assert parse_event(line) is None


def test_an_event_of_another_type_keeps_its_name_and_fields() -> None:
    event = parse_event('{"event": "mine", "process": 2, "colour": "red"}')
    assert event == UnknownEvent(event="mine", process=2, extra={"colour": "red"})


def test_an_event_without_a_required_field_is_unknown() -> None:
    event = parse_event('{"event": "phase", "name": "train", "edge": "middle"}')
    assert event == UnknownEvent(event="phase", extra={"name": "train", "edge": "middle"})


def test_an_optional_field_of_the_wrong_type_counts_as_absent() -> None:
    event = parse_event('{"event": "step", "step": 3, "loss": "low", "mfu": true, "time": 1}')
    assert event == StepEvent(step=3, time=1, extra={"loss": "low", "mfu": True})


def test_a_mapping_with_a_value_of_the_wrong_type_counts_as_absent() -> None:
    event = parse_event('{"event": "eval", "eval_losses": {"a": 1.5, "b": "high"}}')
    assert event == EvalEvent(extra={"eval_losses": {"a": 1.5, "b": "high"}})


def test_a_list_with_an_element_of_the_wrong_type_counts_as_absent() -> None:
    event = parse_event('{"event": "wrong_host", "step": 4, "hosts": [1], "suspects": [1, "two"]}')
    assert event == WrongHostEvent(step=4, hosts=(1,), extra={"suspects": [1, "two"]})


def test_numbers_that_json_lacks_are_read_back() -> None:
    event = parse_event(wire.encode(StepEvent(step=1, loss=math.nan, grad_norm=math.inf)))
    assert isinstance(event, StepEvent)
    assert event.loss is not None and math.isnan(event.loss) and event.grad_norm == math.inf


def test_a_stamped_event_is_a_changed_copy() -> None:
    event = PhaseEvent(name="train", edge="begin", time=1.0)
    stamped = event.stamped(process=3, received=2.0)
    assert stamped == dataclasses.replace(event, process=3, received=2.0)
    assert event.process is None


def test_fields_that_are_absent_are_left_out_of_the_line() -> None:
    assert wire.to_wire(HeartbeatEvent(step=0)) == {"event": "heartbeat", "step": 0}


@pytest.mark.parametrize("event_type", [Event, UnknownEvent, *EVENT_TYPES])
def test_every_event_and_every_field_of_its_own_is_described(event_type: type[Event]) -> None:
    described = field_docs(event_type)
    assert set(described) == {field.name for field in dataclasses.fields(event_type)}
    for text in (event_type.__doc__, *described.values()):
        assert text and text.endswith(".")


def test_the_names_of_all_events_are_different() -> None:
    assert len({one.kind for one in EVENT_TYPES}) == len(EVENT_TYPES)


def test_all_types_of_events_are_listed() -> None:
    assert set(Event.__subclasses__()) == {*EVENT_TYPES, UnknownEvent}
    assert not set(events.EVENT_TYPES) & set(LAUNCHER_EVENT_TYPES)


def test_the_plugin_of_jax_repeats_names_of_the_contract() -> None:
    source = Path(trainer.__file__).parent / "any_program" / "jax_plugins" / "__init__.py"
    texts = {
        one.value
        for one in ast.walk(ast.parse(source.read_text()))
        if isinstance(one, ast.Constant)
    }
    assert {
        environment.NUM_PROCESSES,
        environment.PROCESS_ID,
        environment.JAX_COORDINATOR_ADDRESS,
    } <= texts
