"""Which files and packages the hash of a user's module covers."""

import importlib.metadata
from pathlib import Path

import pytest

from trainer.contract.protocol import sources, versions

FAILS = "raise AssertionError('imported')\n"
"""A line that shows that a module was imported."""
FILES = {
    "model.py": "import math\nimport helpers\nimport nowhere\nfrom package.layers import norm\n",
    "helpers.py": "def late():\n    from folder import other\n",
    "package/__init__.py": "from . import extra\nfrom .layers.norm import scale\n",
    "package/extra.py": "import yaml\nfrom ..beyond import nothing\n",
    "package/layers/norm.py": "import flax.nnx as nnx\n",
    "folder/other.py": "from .deep.down import bottom\nimport helpers\n",
    "folder/deep/down.py": "",
    "folder/unused.py": "",
    "unused.py": "",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Modules that import each other, one package, and folders without `__init__.py`."""
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text + FAILS)
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def found(folder: Path, module: str) -> set[str]:
    files, _ = sources.of_module(module)
    return {path.relative_to(folder).as_posix() for path in files.values()}


def test_imported_modules_are_followed_wherever_they_are_imported(folder: Path) -> None:
    assert found(folder, "model") == set(FILES) - {"folder/unused.py", "unused.py"}


def test_a_package_is_covered_as_a_whole(folder: Path) -> None:
    whole = {name for name in FILES if name.startswith("package/")}
    assert found(folder, "package.extra") == whole


def test_relative_imports_begin_at_the_package_of_their_file(folder: Path) -> None:
    assert found(folder, "folder.other") == {
        "folder/other.py", "folder/deep/down.py", *found(folder, "helpers"),
    }  # fmt: skip


def test_installed_packages_count_with_their_versions(folder: Path) -> None:
    _, packages = sources.of_module("model")
    version = importlib.metadata.version
    assert packages == {"flax": version("flax"), "PyYAML": version("PyYAML")}


def test_a_module_that_is_missing_has_no_sources(folder: Path) -> None:
    assert sources.of_module("nowhere.model") == ({}, {})
    assert sources.of_module("math") == ({}, {})


def test_text_that_is_no_python_imports_nothing(folder: Path) -> None:
    (folder / "model.py").write_text("import = helpers")
    assert found(folder, "model") == {"model.py"}


@pytest.mark.parametrize("name", ["helpers.py", "package/layers/norm.py", "folder/deep/down.py"])
def test_a_changed_file_changes_the_hash(folder: Path, name: str) -> None:
    before = versions.code_sha256("model")
    (folder / "unused.py").write_text("x = 1")
    assert versions.code_sha256("model") == before
    (folder / name).write_text("x = 1")
    assert versions.code_sha256("model") != before


def test_other_versions_of_packages_change_the_hash(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = versions.code_sha256("model")
    monkeypatch.setattr(sources, "_versions", lambda top: {top: "another"})
    assert versions.code_sha256("model") != before


def test_packages_that_a_run_records_are_no_part_of_the_hash(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = versions.code_sha256("model")
    found = sources._versions
    monkeypatch.setattr(sources, "_versions", lambda top: {**found(top), "flax": "another"})
    assert versions.code_sha256("model") == before
