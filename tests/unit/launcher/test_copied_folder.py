"""The copy of a run's folder on a host that does not share it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from launcher.host.run_dir_mirror import CopiedFolder


@contextmanager
def copy(folder: Path, **files: bytes) -> Iterator[CopiedFolder]:
    copied = CopiedFolder(folder, files, followed=["logs/host.log"], made=["sample.txt"])
    yield copied
    copied.close()


def test_the_files_are_there_in_their_folders(tmp_path: Path) -> None:
    CopiedFolder(tmp_path / "run", {"plans/0001.json": b"{}"}, [], [])
    assert (tmp_path / "run/plans/0001.json").read_text() == "{}"


def test_only_the_compiled_programs_of_this_start_remain(tmp_path: Path) -> None:
    files = {"job.yaml": b"", "programs/0002-0000.bundle": b"\xff"}
    CopiedFolder(tmp_path, files, [], [])
    CopiedFolder(tmp_path, {"programs/0001-0000.bundle": b"1"}, [], [])
    assert [path.name for path in (tmp_path / "programs").iterdir()] == ["0001-0000.bundle"]
    CopiedFolder(tmp_path, {}, [], [])
    assert [path.name for path in tmp_path.iterdir()] == ["job.yaml"]


def test_added_lines_are_read_once(tmp_path: Path) -> None:
    log = tmp_path / "logs/host.log"
    log.parent.mkdir()
    log.write_text("of an attempt before\n")
    with copy(tmp_path) as copied:
        assert copied.written() == {}
        with log.open("a") as file:
            file.write("new\nha")
        assert copied.written() == {"logs/host.log": b"new\nha"}
        assert copied.written() == {}


def test_a_log_that_is_rotated_loses_nothing(tmp_path: Path) -> None:
    log = tmp_path / "logs/host.log"
    log.parent.mkdir()
    log.write_text("")
    with copy(tmp_path) as copied:
        log.write_text("first\n")
        log.rename(f"{log}.1")
        log.write_text("second\n")
        told = [copied.written().get("logs/host.log") for _ in range(2)]
    assert told == [b"first\n", b"second\n"]


def test_recreated_file_is_read_from_start(tmp_path: Path) -> None:
    (tmp_path / "sample.txt").write_text("a long sample of an earlier run")
    with copy(tmp_path) as copied:
        assert not (tmp_path / "sample.txt").exists()
        (tmp_path / "sample.txt").write_text("short")
        assert copied.written() == {"sample.txt": b"short"}


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OSError), copy(tmp_path / "file" / "run", job=b"text"):
        pass
