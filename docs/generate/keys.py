"""The pages of job, cluster and flow keys, from the JSON Schemas of the files."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from docs.generate.markdown import NOTE, code, table
from launcher.commands.schema import cluster_schema, flow_schema, job_schema

Schema = Mapping[str, Any]

JOB_INTRO = """\
A job file is YAML 1.2. It describes a training job or, with [`command`](#command-job), any other
program. Unknown keys are errors. Any key can be changed on the command line as `key.path=value`.
`launch schema job` prints the same information as a JSON Schema, which the shipped files name for
editors.
"""
CLUSTER_INTRO = """\
A cluster file is YAML 1.2 and says where a job runs. `--cluster NAME` reads `clusters/NAME.yaml`,
`--cluster PATH` the file at that path, and `--cluster v5p-128` one slice of that accelerator.
Unknown keys are errors. `launch schema cluster` prints the same information as a JSON Schema.
"""
FLOW_INTRO = """\
A flow file is YAML 1.2. `launch flow FILE` runs its steps; see [Chain runs](../how-to/chains.md).
Unknown keys are errors. `launch schema flow-file` prints the same information as a JSON Schema.
"""

MARKERS = {"model": ("module",), "notify": ("url", "email", "command")}
"""Keys that distinguish the sections at one path, if that is not `kind`."""


def job_page() -> str:
    schema = job_schema()
    training, command = (_resolve(schema[name], schema) for name in ("else", "then"))
    shared = [key for key in command["properties"] if key in training["properties"]]
    own = {key: value for key, value in command["properties"].items() if key not in shared}
    return (
        f"{NOTE}\n# Job file\n\n{JOB_INTRO}\n"
        + _section("Training job", training, schema, "")
        + "(command-job)=\n"
        + _section("Program job", {**command, "properties": own}, schema, "", nested=False)
        + f"The keys {', '.join(map(code, shared))} mean the same as for a training job.\n"
    )


def cluster_page() -> str:
    schema = cluster_schema()
    return f"{NOTE}\n# Cluster file\n\n{CLUSTER_INTRO}\n" + _section("Cluster", schema, schema, "")


def flow_page() -> str:
    schema = flow_schema()
    return f"{NOTE}\n# Flow file\n\n{FLOW_INTRO}\n" + _section("Flow", schema, schema, "")


def _section(title: str, section: Schema, root: Schema, path: str, *, nested: bool = True) -> str:
    """Returns the heading and the table of a section, then those of the sections in it."""
    required = section.get("required", ())
    rows, inner = [], []
    for name, value in section["properties"].items():
        key = f"{path}.{name}" if path else name
        options = list(_options(value, root))
        inner += [(key, option) for option in options if "properties" in option]
        default = "required" if name in required else _default(value, options)
        rows.append([code(name), _types(options), default, _description(value, options)])
    text = f"## {title}\n\n{_sentence(section)}{table(('key', 'type', 'default', ''), rows)}\n"
    for key, option in inner if nested else ():
        text += _section(_title(key, option), option, root, key)
    return text


def _title(key: str, option: Schema) -> str:
    """Returns the path of a section, and what distinguishes it from others at that path."""
    properties = option["properties"]
    if marker := next((name for name in MARKERS.get(key, ()) if name in properties), ""):
        return f"{code(key)} with {code(marker)}"
    kind = properties.get("kind", {}).get("const")
    return f"{code(key)} with {code(f'kind: {kind}')}" if kind else code(key)


def _sentence(section: Schema) -> str:
    text = section.get("description", "")
    return f"{' '.join(text.split())}\n\n" if text else ""


def _description(value: Schema, options: list[Schema]) -> str:
    """Returns the description of a key, or else that of its section."""
    found = [value, *(option for option in options if "properties" in option)]
    return next((one["description"] for one in found if "description" in one), "")


def _options(value: Schema, root: Schema) -> Iterator[Schema]:
    """Yields what a value may be: the members of a union, or the section that a list repeats."""
    value = _resolve(value, root)
    members = value.get("anyOf", value.get("oneOf", ()))
    if members and "properties" not in value:
        for member in members:
            yield from _options(member, root)
    elif value.get("items", {}).keys() & {"$ref", "oneOf"}:
        for item in _options(value["items"], root):
            yield {**item, "many": True}
    else:
        yield value


def _resolve(value: Schema, root: Schema) -> Schema:
    if "$ref" not in value:
        return value
    return root["$defs"][value["$ref"].rpartition("/")[2]]


def _types(options: list[Schema]) -> str:
    return " or ".join(dict.fromkeys(_type(option) for option in options))


def _type(option: Schema) -> str:
    if "properties" in option:
        return "list of sections" if option.get("many") else "section"
    if "enum" in option or "const" in option:
        return ", ".join(code(value) for value in option.get("enum", [option.get("const")]))
    match option.get("type"):
        case "null":
            return code("null")
        case "array":
            items = option.get("items", {})
            return f"list of {_plural(items)}" if items else f"{len(option['prefixItems'])} numbers"
        case "object":
            return "section of keys and values"
        case "string":
            return "text"
        case "integer" | "number" as kind:
            return f"{'integer' if kind == 'integer' else 'number'}{_bounds(option)}"
        case "boolean":
            return "`true` or `false`"
    raise ValueError(f"no words for {option}")


def _plural(items: Schema) -> str:
    return {"string": "texts", "integer": "integers", "number": "numbers"}[items["type"]]


def _bounds(option: Schema) -> str:
    signs = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
    found = [f"{sign} {option[name]:g}" for name, sign in signs.items() if name in option]
    return f" {' and '.join(found)}" if found else ""


def _default(value: Schema, options: list[Schema]) -> str:
    if "default" not in value:
        return ""
    default = value["default"]
    if isinstance(default, dict) and any("properties" in option for option in options):
        return "its defaults"
    return code(json.dumps(default, ensure_ascii=False))
