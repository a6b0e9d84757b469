"""The style sheet for docstrings, comments and messages, see "Writing" in CONTRIBUTING.md."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("launcher", "trainer", "benchmarks")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).glob("**/*.py"))
FRAGMENT = re.compile(r"(Of|By|With|As)\b")
"""A docstring that begins so continues the name that it documents."""
UNCLEAR = re.compile(r"\b(tells?|told|telling|nobody|somebody|whoever)\b", re.IGNORECASE)
"""Words that hide the channel (logs, prints, raises) or the agent (the host, the process)."""
STIFF = re.compile(r"\b(who|anew|mend|wish|stands|goes on|at once|no more|for want of)\b")
"""Words that have a plainer form in messages: that, again, fix, request, is, resumes, ..."""


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


def messages(source: str) -> Iterator[tuple[int, str]]:
    """Yields the lines and texts of string literals of three words or more, but no docstrings."""
    tree = ast.parse(source)
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if id(node) not in alone and text.count(" ") > 1:
                yield node.lineno, text


def problems(source: str) -> Iterator[tuple[int, str]]:
    for line, text in docstrings(source):
        if FRAGMENT.match(text):
            yield line, f"begins with a preposition: {text[:60]}"
    for line, text in [*docstrings(source), *comments(source), *messages(source)]:
        if found := UNCLEAR.search(text):
            yield line, f"'{found[0]}': name what is done, and which part does it"
    for line, text in messages(source):
        if found := STIFF.search(text):
            yield line, f"'{found[0]}': use the plain word"


def test_docstrings_comments_and_messages_keep_to_the_style_sheet() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: {problem}"
        for path in FILES
        for line, problem in problems(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        '"""Of a host."""\n',
        'x = 1\n"""With its unit."""\n',
        "x = 1  # the host is told\n",
        'raise ValueError(f"{name} stands there twice")\n',
    ],
)
def test_a_breach_of_the_style_sheet_is_found(source: str) -> None:
    assert list(problems(source))


def test_words_inside_other_words_are_no_breach() -> None:
    assert not list(problems('"""Office hours; an offset."""\nx = 1  # intellect\n'))
