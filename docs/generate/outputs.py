"""The page of the JSON output of commands, from its schemas."""

from collections.abc import Iterator, Mapping
from typing import Any

from docs.generate.markdown import NOTE, code, table
from docs.generate.schemas import file_of
from launcher.commands.outputs import COMMAND_OUTPUTS
from launcher.commands.schema import command_schema, error_schema

INTRO = """\
Every command takes `-o json`. The result goes to standard output, and progress to standard error.
`launch schema COMMAND` prints the JSON Schema of a command's output. The site has the same schemas.

```console
$ launch status quickstart -o json | jq .goodput.wall_s
$ launch schema status
$ launch schema checkpoints list
```

- Every field is always present, except in events. `null` means "not known" or "none".
- Numbers that JSON lacks, such as the loss of a run that diverged, are `null`.
- `launch run`, `resume`, `attach`, `stop` and `sweep` print one object when they end. With
  `--detach`, it is the status of the run when the command returns; `launch events` follows the run.
- `launch logs`, `events` and `exec` print an object per line, each as soon as it is known.
- A later version may add fields. Ignore those that you do not know.
"""
ERRORS = """\
## Errors

A command that ends with an [exit code](cli.md#command-line) other than 0 prints the error as one
line of JSON, the last one on standard error: see [ErrorResult](#errorresult), `launch schema error`
and [error.schema.json](../schemas/error.schema.json). Each of its `problems` has the file, line and
key, what was found there, and what was expected:

```console
$ launch plan job.yaml -o json 2>&1 | jq '.problems[0]'
{
  "file": "job.yaml",
  "line": 9,
  "override": null,
  "message": "expected a whole number of at least 1, found 'many'",
  "key": "steps",
  "found": "'many'",
  "expected": "a whole number of at least 1"
}
```

Two commands print a result and no error: `launch checkpoints list --verify` and `launch checkpoints
restore-damaged` end with code 1 when a checkpoint is damaged. A run that fails prints both: its
status, then the error.
"""
ELSEWHERE = {"Job": "job-file.md", "CommandJob": "job-file.md", "Cluster": "cluster-file.md"}
"""Pages that describe a type, by its name."""
EVENTS = "events"
Schema = Mapping[str, Any]


def page() -> str:
    schemas = {name: command_schema(name) for name in COMMAND_OUTPUTS}
    types = _types_of("ErrorResult", error_schema())
    for name in schemas.keys() - {EVENTS}:
        types |= _types_of(_name_of(name), schemas[name])
    rows = (
        [code(f"launch {name}"), _output(name, schema), _link_to_file(name)]
        for name, schema in schemas.items()
    )
    return (
        f"{NOTE}\n# JSON output\n\n{INTRO}\n{ERRORS}\n## Outputs of the commands\n\n"
        + table(("command", "prints", "schema"), rows)
        + "\n## Types\n\n"
        + "\n".join(_section(name, types[name]) for name in sorted(types))
    )


def _name_of(command: str) -> str:
    return getattr(COMMAND_OUTPUTS[command].type, "__name__", "")


def _output(command: str, schema: Schema) -> str:
    if command == EVENTS:
        return "a line for each [event](events-and-metrics.md)"
    is_object = "properties" in schema
    text = _link(_name_of(command)) if is_object else _type(schema)
    return f"a line for each {text}" if COMMAND_OUTPUTS[command].lines else text


def _link_to_file(command: str) -> str:
    file = file_of(command).name
    return f"[{file}](../schemas/{file})"


def _types_of(name: str, schema: Schema) -> dict[str, Schema]:
    """Returns the types in a schema that this page describes; `name` is that of the root."""
    found = {name: schema} if "properties" in schema else {}
    pending = [{key: value for key, value in schema.items() if key != "$defs"}]
    while pending:
        for reference in _references(pending.pop()):
            definition = schema["$defs"][reference]
            if reference not in {*found, *ELSEWHERE} and {"properties", "enum"} & {*definition}:
                found[reference] = definition
                pending.append(definition)
    return found


def _references(value: object) -> Iterator[str]:
    if isinstance(value, Mapping):
        if "$ref" in value:
            yield value["$ref"].rpartition("/")[2]
        value = list(value.values())
    if isinstance(value, list):
        for child in value:
            yield from _references(child)


def _section(name: str, schema: Schema) -> str:
    about = schema.get("description", "")
    if "enum" in schema:
        return f"### {name}\n\n{about}\n\nOne of {_type(schema)}.\n"
    rows = (
        [code(field), _type(value), value.get("description", "")]
        for field, value in schema["properties"].items()
    )
    return f"### {name}\n\n{about}\n\n{table(('field', 'type', ''), rows)}"


def _link(name: str) -> str:
    return f"[{name}]({ELSEWHERE.get(name, f'#{name.lower()}')})"


def _type(value: Schema) -> str:
    """Describes the type of a field."""
    match value:
        case {"$ref": reference}:
            return _link(reference.rpartition("/")[2])
        case {"anyOf": options}:
            return " or ".join(map(_type, options))
        case {"enum": choices}:
            return ", ".join(map(code, choices))
        case {"type": "array", "items": items}:
            return f"list of {_type(items)}"
        case {"type": "object", "additionalProperties": dict() as values}:
            return f"object of {_type(values)} by key"
        case {"type": "null"}:
            return code("null")
        case {"type": kind}:
            return str(kind)
        case _:
            return "any value"
