"""The letters of dims in array names: one legend, to which every module with such names refers."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEGEND = ROOT / "trainer/model/__init__.py"
FILES = sorted((ROOT / "trainer").glob("**/*.py"))
SUFFIXED = re.compile(r"[a-z][a-z0-9_]*_([A-Z1][A-Za-z1]{0,5})")
ENTRY = re.compile(r"(?:^ {4}| {2,})(\w) (?=[a-zA-Z(])", re.MULTILINE)


def docstring(source: str) -> str:
    return ast.get_docstring(ast.parse(source), clean=False) or ""


def legend() -> list[str]:
    """Returns the letters that the legend defines, once per definition."""
    return ENTRY.findall(docstring(LEGEND.read_text(encoding="utf-8")))


def names(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Name(id=name) | ast.arg(arg=name):
                yield name


def letters(source: str) -> set[str]:
    """Returns the letters of dims in a module's array names."""
    return {letter for name in names(source) if (m := SUFFIXED.fullmatch(name)) for letter in m[1]}


def problems(source: str) -> Iterator[str]:
    used = letters(source)
    yield from (f"the legend has no letter {letter}" for letter in sorted(used - set(legend())))
    if used and "trainer/model/__init__.py" not in docstring(source):
        yield "its docstring does not refer to trainer/model/__init__.py"


def test_the_legend_defines_each_letter_once() -> None:
    assert len(legend()) == len(set(legend())) > 20


def test_array_names_use_letters_of_legend_that_modules_cite() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {problem}"
        for path in FILES
        for problem in problems(path.read_text(encoding="utf-8"))
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    ["query_BSHh = 1\n", '"""See trainer/model/__init__.py."""\nquery_BSz = 1\n'],
    ids=["no reference", "unknown letter"],
)
def test_a_breach_is_found(source: str) -> None:
    assert list(problems(source))


def test_other_names_have_no_letters_of_dims() -> None:
    assert not letters("MAX_S = 1\nlimit_s = 2\nhost_A1_b = 3\n")
