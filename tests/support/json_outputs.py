"""The JSON that commands print, validated by the schemas that `launch schema` prints."""

import json
from typing import Any

from jsonschema import Draft202012Validator

from docs.generate.schemas import file_of
from launcher.commands.outputs import COMMAND_OUTPUTS


def validated(command: str, output: str) -> Any:
    """Returns what a command has printed; a list of lines if each is a value.

    Fields that the schema lacks are errors, except those that a program adds to its events.
    """
    schema = json.loads(file_of(command).read_text(encoding="utf-8"))
    validator = Draft202012Validator(schema if command == "events" else _strict(schema))
    if not COMMAND_OUTPUTS[command].lines:
        found = json.loads(output)
        validator.validate(found)
        return found
    lines = [json.loads(line) for line in output.splitlines()]
    for line in lines:
        validator.validate(line)
    return lines


def validated_error(errors: str) -> Any:
    """Returns the error in the last line of a command's standard error."""
    error = json.loads(errors.splitlines()[-1])
    schema = json.loads(file_of("error").read_text(encoding="utf-8"))
    Draft202012Validator(_strict(schema)).validate(error)
    return error


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    found = {name: _strict(value) for name, value in schema.items()}
    is_type = {"properties", "title"} <= found.keys()
    return {"additionalProperties": False, **found} if is_type else found
