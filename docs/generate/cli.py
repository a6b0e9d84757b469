"""The page of commands, from the definition of the command line."""

from collections.abc import Iterator
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any

import typer.main

from docs.generate.markdown import NOTE, code, table
from launcher.cli.app import app

INTRO = """\
`launch --cluster C job.yaml` is short for `launch run --cluster C job.yaml`. Every command has
`--help` and `-o json`; see [JSON output](command-output.md).

| exit code | meaning |
|---|---|
| 0 | success; for a run: the job finished |
| 1 | the job failed, or a check found a problem |
| 2 | usage or configuration error; nothing was started |
| 3 | the cluster cannot be reached or provisioned, or its head was lost |
| 130 | stopped or interrupted |
"""


def page() -> str:
    return f"{NOTE}\n# Command line\n\n{INTRO}\n" + "".join(
        _command(path, command)
        for path, command in _commands("launch", typer.main.get_command(app))
    )


def _commands(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    """Yields the commands below a group, in the order of their names."""
    for name, child in sorted(getattr(command, "commands", {}).items()):
        yield from _commands(f"{path} {name}", child)
    if not hasattr(command, "commands"):
        yield path, command


def _command(path: str, command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option"]
    usage = " ".join([path, "[OPTIONS]", *map(_metavar, arguments)])
    rows = [
        *([code(_metavar(a)), a.help or "", _default(a)] for a in arguments),
        *([_names(o), o.help or "", _default(o)] for o in options),
    ]
    text = f"## {code(path)}\n\n```text\n{usage}\n```\n\n{_help(command.help or '')}"
    return text + (table(("argument or option", "", "default"), rows) + "\n" if rows else "")


def _metavar(argument: Any) -> str:
    name = argument.metavar or argument.name.upper()
    return name if argument.required or name.startswith("[") else f"[{name}]"


def _help(text: str) -> str:
    """Returns a help text; neighbouring example commands become one code block."""
    paragraphs = [" ".join(part.split()) for part in text.split("\n\n")]
    parts = []
    for is_example, group in groupby(paragraphs, lambda part: part.startswith("launch ")):
        found = list(group)
        if is_example:
            parts += ["```console", *(f"$ {part}" for part in found), "```\n"]
        else:
            parts += ["\n\n".join(found) + "\n"]
    return "\n".join(parts) + "\n"


def _names(option: Any) -> str:
    names = ", ".join(code(name) for name in [*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {code(option.metavar or _kind(option))}"


def _kind(option: Any) -> str:
    annotation = option.type_descriptor.annotation
    if issubclass(annotation, Enum):
        return "|".join(member.value for member in annotation)
    return {Path: "PATH", str: "TEXT", int: "N", float: "X"}[annotation]


def _default(option: Any) -> str:
    if option.default is None or option.default is False:
        return ""
    if option.default is True:  # of a flag with a name for each value
        return code(option.opts[0])
    return code(getattr(option.default, "value", option.default))
