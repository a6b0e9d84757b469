"""The style sheet for docstrings and comments, see "Writing" in CONTRIBUTING.md."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted([*ROOT.glob("launcher/**/*.py"), *ROOT.glob("trainer/**/*.py")])
FRAGMENT = re.compile(r"(Of|By|With|As)\b")
"""A docstring that begins so continues the name that it documents."""
UNCLEAR = re.compile(r"\b(tells?|told|telling|nobody|somebody|whoever)\b", re.IGNORECASE)
"""Words that hide the channel (logs, prints, raises) or the agent (the host, the process)."""


def docstrings(source: str) -> Iterator[tuple[int, str]]:
    """Yields the lines and texts of strings that stand alone: docstrings of all kinds."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield node.lineno, text.strip()


def comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def problems(source: str) -> Iterator[tuple[int, str]]:
    for line, text in docstrings(source):
        if FRAGMENT.match(text):
            yield line, f"begins with a preposition: {text[:60]}"
    for line, text in [*docstrings(source), *comments(source)]:
        if found := UNCLEAR.search(text):
            yield line, f"'{found[0]}': name what is done, and which part does it"


def test_docstrings_and_comments_keep_to_the_style_sheet() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {problem}"
        for path in FILES
        for line, problem in problems(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    ['"""Of a host."""\n', 'x = 1\n"""With its unit."""\n', "x = 1  # the host is told\n"],
)
def test_a_breach_of_the_style_sheet_is_found(source: str) -> None:
    assert list(problems(source))


def test_words_inside_other_words_are_no_breach() -> None:
    assert not list(problems('"""Office hours; an offset."""\nx = 1  # intellect\n'))
