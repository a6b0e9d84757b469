"""Files that are replaced in one piece."""

import os
from pathlib import Path

import pytest

from launcher.core.files import replace_file


def test_replaced_file_is_synced_before_rename_and_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, done, fsync, replace = tmp_path / "state.json", list[str](), os.fsync, Path.replace

    def noted_fsync(descriptor: int) -> None:
        fsync(descriptor)
        done.append(f"fsync {Path(f'/proc/self/fd/{descriptor}').readlink().name}")

    def noted_replace(source: Path, target: Path) -> Path:
        done.append(f"rename to {target.name}")
        return replace(source, target)

    monkeypatch.setattr(os, "fsync", noted_fsync)
    monkeypatch.setattr(Path, "replace", noted_replace)
    replace_file(path, "text")
    temporary = f".state.json.{os.getpid()}"
    assert done == [f"fsync {temporary}", "rename to state.json", f"fsync {tmp_path.name}"]
    assert path.read_text() == "text"
