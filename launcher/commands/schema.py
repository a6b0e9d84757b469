"""`launch schema`: JSON Schemas of files, and of what commands print as JSON."""

import dataclasses
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import GenerateJsonSchema, models_json_schema

from launcher.cluster.schema import Cluster
from launcher.commands.field_docs import field_docs
from launcher.commands.outputs import COMMAND_OUTPUTS
from launcher.core.errors import UsageError
from launcher.core.json_output import ErrorResult
from launcher.flow.schema import Flow
from trainer.contract.config.command import CommandJob
from trainer.contract.config.errors import suggest
from trainer.contract.config.job import Job
from trainer.contract.protocol.events import Event

DIALECT = "https://json-schema.org/draft/2020-12/schema"
Schema = dict[str, Any]


def job_schema() -> Schema:
    """Returns the schema of a job file: of a training job, or of one with `command`."""
    references, schema = models_json_schema([(Job, "validation"), (CommandJob, "validation")])
    return {
        "$schema": DIALECT,
        "title": "Slipway job",
        "type": "object",
        "if": {"required": ["command"]},
        "then": references[CommandJob, "validation"],
        "else": references[Job, "validation"],
        **schema,
    }


def cluster_schema() -> Schema:
    """Returns the schema of a cluster file."""
    return {"$schema": DIALECT, **Cluster.model_json_schema(), "title": "Slipway cluster"}


def flow_schema() -> Schema:
    """Returns the schema of a flow file."""
    return {"$schema": DIALECT, **Flow.model_json_schema(), "title": "Slipway flow"}


def error_schema() -> Schema:
    """Returns the schema of the error that a command prints as JSON."""
    return _schema_of_type(ErrorResult, "launch: an error")


def command_schema(command: str) -> Schema:
    """Returns the schema of a command's JSON output, or of each line if it prints several."""
    output = COMMAND_OUTPUTS[command]
    title = f"launch {command}"
    return _schema_of_type(output.type, f"{title}: one line" if output.lines else title)


SPECIAL: Mapping[str, Callable[[], Schema]] = {
    "job": job_schema,
    "cluster": cluster_schema,
    "flow-file": flow_schema,
    "error": error_schema,
}
"""Functions that return the schemas of what is not a command's output, by their names."""
NAMES = (*SPECIAL, *COMMAND_OUTPUTS)
"""The names of all schemas."""


def schema_of(name: str) -> Schema:
    """Returns the schema with one of NAMES. Raises UsageError for another name."""
    if name in SPECIAL:
        return SPECIAL[name]()
    if name in COMMAND_OUTPUTS:
        return command_schema(name)
    known = f"Known: {', '.join(NAMES)}.{suggest(name, NAMES)}"
    raise UsageError(f"launch schema {name}: there is no such schema. {known}")


def as_text(schema: Schema) -> str:
    """Returns a schema as indented JSON."""
    return json.dumps(schema, indent=2, ensure_ascii=False)


def _schema_of_type(result_type: Any, title: str) -> Schema:
    found = TypeAdapter(result_type).json_schema(
        mode="serialization", schema_generator=_ResultSchema
    )
    return {"$schema": DIALECT, **found, "title": title}


class _ResultSchema(GenerateJsonSchema):
    """The schema of printed values: each field is present, with the text that documents it."""

    def field_is_required(self, field: Any, total: bool) -> bool:
        return True

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> Schema:
        return self.generate_inner(schema["schema"])  # without the default, which says nothing

    def dataclass_schema(self, schema: Any) -> Schema:
        found = _described(super().dataclass_schema(schema), schema["cls"])
        return _of_event(found, schema["cls"]) if issubclass(schema["cls"], Event) else found

    def model_schema(self, schema: Any) -> Schema:
        return _described(super().model_schema(schema), schema["cls"])


def _described(schema: Schema, owner: type) -> Schema:
    docs = field_docs(owner)
    for name, field in schema.get("properties", {}).items():
        if name in docs:
            field.setdefault("description", _with_null(docs[name]))
    if "description" in schema:
        schema["description"] = _with_null(" ".join(schema["description"].split()))
    return schema


def _with_null(text: str) -> str:
    return re.sub(r"\bNone\b", "null", re.sub(r"(^|\. )None\b", r"\1Null", text))


def _of_event(schema: Schema, kind: type[Event]) -> Schema:
    """Changes the schema of an event to that of its line, which lacks fields that are None."""
    fields = {n: _without_null(f) for n, f in schema["properties"].items() if n != "extra"}
    event = {} if "event" in fields else {"event": {"type": "string", "const": kind.kind}}
    required = [f.name for f in dataclasses.fields(kind) if f.default is dataclasses.MISSING]
    required = [*event, *(name for name in required if name in fields)]
    return {**schema, "properties": event | fields, "required": required}


def _without_null(field: Schema) -> Schema:
    options = [one for one in field.get("anyOf", ()) if one != {"type": "null"}]
    rest = {name: value for name, value in field.items() if name != "anyOf"}
    return {**options[0], **rest} if len(options) == 1 else field
