"""Tests share helpers through tests/support, unit tests start no process, and names are plain."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import GROUPS
from tests.docs.pages import DOCS
from tests.support.longest_first import LONG_FILES_S, LONG_PAGES_S

TESTS = Path(__file__).parents[1]
FILES = {path.relative_to(TESTS).as_posix(): path for path in sorted(TESTS.rglob("*.py"))}
UNIT = [name for name in FILES if name.startswith("unit/")]
STARTS_PROCESSES = {
    "multiprocessing", "subprocess", "tests.support.cli", "tests.support.gang",
    "tests.support.host_programs", "tests.support.launches", "tests.support.processes",
    "tests.support.ray_clusters",
}  # fmt: skip
SEARCHED = {
    "docs": ["docs/"],
    "faults": ["faults/"],
    "jobs_api": ["e2e/ray_jobs/"],
    "scale": ["scale/"],
    "slow": ["docs/", "e2e/", "integration/"],
    **{group: ["e2e/", "integration/"] for group in sorted(GROUPS - {"docs", "jobs_api"})},
}
"""Folders in which `.ci/run` looks for the tests with a mark."""
LONGEST_NAME = 70
NOT_PLAIN = {"anew", "tell", "tells", "told", "who", "whoever"}


def imported(path: Path) -> Iterator[str]:
    """Yields the full names of the modules that a file imports, wherever it does."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (name.name for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{name.name}" for name in node.names)


@pytest.mark.parametrize("name", FILES)
def test_file_imports_no_test_file(name: str) -> None:
    modules = {m for m in imported(FILES[name]) if m.startswith("tests.")}
    assert not [m for m in modules if any(part.startswith("test_") for part in m.split("."))]


@pytest.mark.parametrize("name", UNIT)
def test_unit_test_starts_no_process(name: str) -> None:
    assert not STARTS_PROCESSES & set(imported(FILES[name]))


def test_tiers_have_the_tests() -> None:
    """A test outside of the tiers' folders would run in none of them by intent."""
    tiers = {"architecture", "docs", "e2e", "faults", "integration", "scale", "unit"}
    folders = {name.split("/")[0] for name in FILES if "/test_" in f"/{name}"}
    assert folders == tiers


@pytest.mark.parametrize("mark", SEARCHED)
def test_marks_are_in_the_folders_that_ci_searches(mark: str) -> None:
    of_mark = [
        name
        for name, path in FILES.items()
        if name != "conftest.py" and f"pytest.mark.{mark}" in path.read_text(encoding="utf-8")
    ]
    assert of_mark
    assert not [name for name in of_mark if not name.startswith(tuple(SEARCHED[mark]))]


@pytest.mark.parametrize("name", [name for name in FILES if "/test_" in f"/{name}"])
def test_names_of_tests_are_short_and_plain(name: str) -> None:
    tree = ast.parse(FILES[name].read_text(encoding="utf-8"))
    tests = [n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
    named = [test for test in tests if test.startswith("test_")]
    assert not [
        test for test in named if len(test) > LONGEST_NAME or NOT_PLAIN & {*test.split("_")}
    ]


@pytest.mark.parametrize("name", ["targets.toml", "faults.toml"])
def test_mutation_checks_name_existing_tests(name: str) -> None:
    text = (TESTS / "mutation" / name).read_text(encoding="utf-8")
    files = {test.partition("::")[0] for one in _tests_of(tomllib.loads(text)) for test in one}
    assert files
    assert [file for file in files if not (TESTS.parent / file).is_file()] == []


def test_files_that_are_started_first_exist() -> None:
    pages = [DOCS / f"{page}.md" for page in LONG_PAGES_S]
    files = [TESTS.parent / file for file in LONG_FILES_S]
    assert [path for path in [*pages, *files] if not path.is_file()] == []


def _tests_of(table: dict[str, Any]) -> Iterator[list[str]]:
    """Yields the test files of every target or fault, without pytest's options."""
    for value in table.values():
        for entry in value if isinstance(value, list) else [value]:
            if isinstance(entry, dict) and "tests" in entry:
                yield [word for word in entry["tests"] if word.startswith("tests/")]
            elif isinstance(entry, dict):
                yield from _tests_of(entry)
