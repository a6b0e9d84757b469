"""The page of events and metrics, from the dataclasses of the events."""

import dataclasses
import inspect
from collections.abc import Iterable
from typing import Any

from docs.generate.markdown import NOTE, code, table
from launcher.commands.field_docs import field_docs
from launcher.core.events import LAUNCHER_EVENT_TYPES
from trainer.contract.protocol.events import EVENT_TYPES, Event

INTRO = """\
A program sends events to the launcher as JSON objects, one per line, on the pipe in
`SLIPWAY_EVENTS_FD`; see [Process contract](process-contract.md). `event` is the type. The launcher
adds events of its own and keeps them in `events.jsonl` of the [run directory](run-directory.md).

## Fields of every event

"""
METRICS = """\
## metrics.jsonl

Process 0 writes one line every `log_every` steps, with the fields of [`step`](#step) and the
`attempt`, and one per evaluation, with the fields of [`eval`](#eval). `mfu` is model FLOPs
utilization by the convention in
[What the plan computes](../explanation/plan-figures.md#bounds-of-a-step).

After a crash, steps since the checkpoint are repeated under a new `attempt`. To get each step once:
`trainer.contract.records.metrics_file.curve(open("runs/NAME/metrics.jsonl"))`.
"""


def page() -> str:
    return (
        f"{NOTE}\n# Events and metrics\n\n{INTRO}"
        + _fields(Event, dataclasses.fields(Event))
        + _group("Events of a program", EVENT_TYPES)
        + _group("Events of the launcher", LAUNCHER_EVENT_TYPES)
        + METRICS
    )


def _group(title: str, types: Iterable[type[Event]]) -> str:
    return f"## {title}\n\n" + "".join(_event(kind) for kind in types)


def _event(kind: type[Event]) -> str:
    shared = {field.name for field in dataclasses.fields(Event)}
    own = [field for field in dataclasses.fields(kind) if field.name not in shared]
    text = f"### {code(kind.kind)}\n\n{inspect.getdoc(kind)}\n\n"
    return text + (_fields(kind, own) if own else "")


def _fields(kind: type[Event], fields: Iterable[dataclasses.Field[Any]]) -> str:
    texts = field_docs(kind)
    rows = (
        [code(field.name), "yes" if _is_required(field) else "", texts.get(field.name, "")]
        for field in fields
        if field.name != "extra"
    )
    return table(("field", "required", ""), rows) + "\n"


def _is_required(field: dataclasses.Field[Any]) -> bool:
    return field.default is field.default_factory is dataclasses.MISSING
