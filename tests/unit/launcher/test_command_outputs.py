"""Every command of `launch` prints JSON, and its type and schema are listed."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import typer.main

from docs.generate.schemas import file_of, text_of
from launcher.cli.app import app
from launcher.commands.outputs import COMMAND_OUTPUTS
from launcher.commands.schema import NAMES, schema_of


def commands(group: Any, *words: str) -> Iterator[tuple[str, Any]]:
    """Yields every command below a group, with its words after `launch`."""
    for name, child in group.commands.items():
        if hasattr(child, "commands"):
            yield from commands(child, *words, name)
        else:
            yield " ".join((*words, name)), child


COMMANDS = dict(commands(typer.main.get_command(app)))


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_the_option_for_json(name: str) -> None:
    options = {option: one for one in COMMANDS[name].params for option in one.opts}
    assert options["-o"] is options["--output"], "use OutputOption of launcher/cli/options.py"
    assert "json" in list(options["-o"].type_descriptor.annotation)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_a_type_of_its_output(name: str) -> None:
    assert name in COMMAND_OUTPUTS, "add its type to launcher/commands/outputs.py"


def test_every_listed_output_is_that_of_a_command() -> None:
    assert set(COMMAND_OUTPUTS) == set(COMMANDS)


@pytest.mark.parametrize("name", NAMES)
def test_written_schema_is_fresh(name: str) -> None:
    assert file_of(name).exists(), "run: uv run python -m docs.generate"
    assert file_of(name).read_text(encoding="utf-8") == text_of(name)


def test_no_other_schema_is_written() -> None:
    assert {path.name for path in file_of("job").parent.iterdir()} == {
        file_of(name).name for name in NAMES
    }


def test_types_of_different_outputs_have_different_names() -> None:
    found: dict[str, Any] = {}
    for name in COMMANDS.keys() - {"events"}:
        for title, schema in schema_of(name).get("$defs", {}).items():
            assert found.setdefault(title, schema) == schema, title


@pytest.mark.parametrize("name", COMMANDS)
def test_every_type_in_an_output_is_described_by_sentences(name: str) -> None:
    schema = schema_of(name)
    types = [schema, *schema.get("$defs", {}).values()]
    texts = [one["description"] for one in types if "description" in one]
    texts += [
        field["description"]
        for one in types
        for field in one.get("properties", {}).values()
        if "description" in field
    ]
    wrong = [text for text in texts if not re.fullmatch(r"[A-Z`\"0-9].*[.:)]", text, re.DOTALL)]
    assert wrong == []
    types = schema.get("$defs", {})
    assert [name for name, one in types.items() if '"description"' not in json.dumps(one)] == []
