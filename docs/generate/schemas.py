"""The JSON Schemas of files and of the output of commands, in docs/schemas/."""

from pathlib import Path

from launcher.commands.schema import as_text, schema_of

SCHEMAS = Path(__file__).parents[1] / "schemas"


def file_of(name: str) -> Path:
    """Returns the file of the schema with a name, such as "checkpoints list"."""
    return SCHEMAS / f"{name.replace(' ', '-')}.schema.json"


def text_of(name: str) -> str:
    """Returns what `launch schema NAME` prints."""
    return as_text(schema_of(name)) + "\n"
