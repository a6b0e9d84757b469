"""Whether a process that waits still has the code that is on its disk."""

import importlib
import os
import sys
from pathlib import Path

import pytest

from launcher.host import loaded_code
from launcher.host.loaded_code import LoadedCode


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A module below the root, which this process has imported."""
    path = tmp_path / "of_the_root.py"
    path.write_text("VALUE = 1\n")
    monkeypatch.setattr(loaded_code, "ROOT", tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(path.stem)
    monkeypatch.delitem(sys.modules, path.stem)  # restored, and removed when the test has ended
    importlib.import_module(path.stem)
    return path


def test_unchanged_code_is_current(module: Path) -> None:
    assert LoadedCode().is_current()


def test_a_written_module_is_not_current(module: Path) -> None:
    code = LoadedCode()
    module.write_text("VALUE = 12\n")
    assert not code.is_current()


def test_a_replaced_module_of_the_same_time_and_size_is_not_current(module: Path) -> None:
    code, about = LoadedCode(), module.stat()
    new = module.with_suffix(".new")
    new.write_text("VALUE = 2\n")
    os.utime(new, ns=(about.st_atime_ns, about.st_mtime_ns))
    new.replace(module)
    assert not code.is_current()


def test_a_removed_module_is_not_current(module: Path) -> None:
    code = LoadedCode()
    module.unlink()
    assert not code.is_current()


def test_modules_of_other_folders_do_not_count(module: Path, tmp_path: Path) -> None:
    code = LoadedCode()
    (tmp_path / "never_imported.py").touch()
    assert code.is_current()
