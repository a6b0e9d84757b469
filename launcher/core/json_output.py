"""Results and errors as JSON: what commands print with `-o json`.

A result goes to standard output: one JSON value, or one value per line while it arrives. An error
is the last line of standard error. Numbers that JSON lacks (infinity, "not a number") are null.
"""

import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from launcher.core.errors import SlipwayError
from trainer.contract.errors import Problem

_OPTION = re.compile(r"--output|-[a-zA-Z]*o")
"""The option before its value; short options may be combined, as in `-fo json`."""
_WITH_VALUE = re.compile(r"--output=json|-[a-zA-Z]*ojson")


@dataclass(frozen=True, kw_only=True)
class ErrorResult:
    """The error that ends a command with a code other than 0."""

    exit_code: int
    """2: usage or configuration; 1: the job failed; 3: hosts; 130: interrupted."""
    message: str
    """The whole error as text, with a line for each problem."""
    details: Sequence[str]
    """Lines that explain it, such as the last output of a host that failed."""
    hint: str | None
    """The next action; null when the message names it."""
    run: str | None
    """Directory of the run that ended with this error; null when no run had begun."""
    problems: Sequence[Problem]
    """What is wrong in files and overrides, all of it; empty for other errors."""


def print_json(result: object) -> None:
    """Prints a result, made of dataclasses and models, as one indented JSON value."""
    print(json_text(result))


def print_json_line(result: object) -> None:
    """Prints a result as one line. The caller flushes the stream."""
    print(json.dumps(to_json(result)))


def print_json_error(error: SlipwayError) -> int:
    """Prints an error as a line on standard error; returns its exit code."""
    run = error.run_dir and str(error.run_dir)
    result = ErrorResult(
        exit_code=error.exit_code, message=str(error), details=error.details, hint=error.hint,
        run=run, problems=error.problems,
    )  # fmt: skip
    print(json.dumps(to_json(result)), file=sys.stderr)
    return error.exit_code


def json_text(result: object) -> str:
    """Returns what `print_json` prints."""
    return json.dumps(to_json(result), indent=2)


def to_json(result: object) -> Any:
    """Returns a result as JSON values."""
    from pydantic_core import to_jsonable_python

    return to_jsonable_python(result, inf_nan_mode="null")


def requests_json(arguments: Sequence[str]) -> bool:
    """Returns whether a command line requests JSON, even if it cannot be parsed otherwise."""
    if "--" in arguments:
        arguments = arguments[: arguments.index("--")]
    pairs = pairwise(arguments)
    return any(map(_WITH_VALUE.fullmatch, arguments)) or any(
        value == "json" and _OPTION.fullmatch(option) for option, value in pairs
    )
