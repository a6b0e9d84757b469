"""The folder of compiled programs: its limit, what is removed first, and what never is."""

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer.contract.config.loader import ConfigError
from trainer.contract.protocol.environment import PROGRAMS_BYTES
from trainer.programs import store
from trainer.programs.store import ABANDONED_S, DIGEST_BYTES, Entry, ProgramStore, abandoned

SIZE = 1000
"""Bytes of a file."""
NAMES = ("job/step", "job/score", "machine/digest")


def size_of(count: int) -> int:
    return count * SIZE


def write(folder: Path, name: str, used_s: float, limit: int = 10**9) -> None:
    """Writes a file of SIZE bytes by a process that ends."""
    writer = ProgramStore(folder, limit)
    writer.write(name, name.encode().ljust(SIZE - DIGEST_BYTES))
    writer.close()
    os.utime(folder / name, (used_s, used_s))


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.glob("*/*")}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three files, of which NAMES[0] was used longest ago."""
    for used_s, name in enumerate(NAMES, start=1):
        write(tmp_path, name, used_s)
    return tmp_path


def test_data_is_read_as_written(tmp_path: Path) -> None:
    programs = ProgramStore(tmp_path, 10**6)
    programs.write("job/step", b"data")
    assert ProgramStore(tmp_path, 10**6).read("job/step") == b"data"
    assert programs.read("job/other") is None


def test_damaged_data_is_not_read(folder: Path) -> None:
    path = folder / NAMES[0]
    path.write_bytes(path.read_bytes()[:-1] + b"!")
    assert ProgramStore(folder, 10**6).read(NAMES[0]) is None
    path.write_bytes(b"")
    assert ProgramStore(folder, 10**6).read(NAMES[0]) is None


@pytest.mark.parametrize("fitting", range(len(NAMES) + 1))
def test_the_least_recently_used_files_are_removed(folder: Path, fitting: int) -> None:
    ProgramStore(folder, size_of(fitting)).prune()
    assert files(folder) == set(NAMES[len(NAMES) - fitting :])


def test_reading_a_file_is_a_use(folder: Path) -> None:
    reader = ProgramStore(folder, 10**6)
    assert reader.read(NAMES[0]) is not None
    reader.close()
    ProgramStore(folder, size_of(1)).prune()
    assert files(folder) == {NAMES[0]}


def test_files_in_use_stay_until_their_process_ends(folder: Path) -> None:
    reader = ProgramStore(folder, 10**6)
    reader.read(NAMES[1])
    os.utime(folder / NAMES[1], (1, 1))
    ProgramStore(folder, 0).prune()
    assert files(folder) == {NAMES[1]}
    reader.close()
    ProgramStore(folder, 0).prune()
    assert files(folder) == set()


def test_files_that_this_process_has_written_stay(folder: Path) -> None:
    writer = ProgramStore(folder, size_of(2))
    writer.write("job/new", bytes(SIZE - DIGEST_BYTES))
    os.utime(folder / "job/new", (0, 0))
    writer.prune()
    assert files(folder) == {"job/new", NAMES[2]}


def test_a_process_that_stops_while_it_changes_the_folder_blocks_no_other(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "LOCK_S", 0.1)
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        programs = ProgramStore(folder, size_of(2))
        programs.write("job/new", b"data")
        assert programs.read("job/new") is None
        assert programs.read(NAMES[0]) is not None
    assert files(folder) == set(NAMES)


def test_a_killed_process_uses_nothing(folder: Path) -> None:
    code = (
        "import sys, pathlib, time; from trainer.programs.store import ProgramStore;"
        "programs = ProgramStore(pathlib.Path(sys.argv[1]), 10**6); programs.read(sys.argv[2]);"
        "print('used', flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(folder), NAMES[0]], stdout=subprocess.PIPE
    ) as user:
        assert user.stdout and user.stdout.readline() == b"used\n"
        ProgramStore(folder, 0).prune()
        assert files(folder) == {NAMES[0]}
        user.kill()
    ProgramStore(folder, 0).prune()
    assert files(folder) == set()


def test_emptied_folders_are_removed_and_made_again(folder: Path) -> None:
    programs = ProgramStore(folder, size_of(1))
    programs.prune()
    assert not (folder / "job").exists()
    programs.write(NAMES[0], b"data")
    assert programs.read(NAMES[0]) == b"data"


def test_data_above_the_limit_is_not_written(folder: Path) -> None:
    ProgramStore(folder, SIZE).write("job/large", bytes(SIZE))
    assert files(folder) == set(NAMES)


def test_a_file_that_a_dead_process_was_writing_is_removed(folder: Path) -> None:
    old = time.time() - 2 * ABANDONED_S
    for name, used_s in (("job/.dead.1", old), ("job/.alive.2", time.time())):
        (folder / name).write_bytes(b"part")
        os.utime(folder / name, (used_s, used_s))
    ProgramStore(folder, 10**6).prune()
    assert files(folder) == {*NAMES, "job/.alive.2"}


def test_several_processes_write_and_remove_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, pathlib; from trainer.programs.store import ProgramStore\n"
        "for number in range(60):\n"
        "    programs = ProgramStore(pathlib.Path(sys.argv[1]), 5000)\n"
        "    name = f'job/{number % 7}'; wanted = name.encode() * 100\n"
        "    found = programs.read(name)\n"
        "    assert found in (None, wanted), found\n"
        "    programs.write(name, wanted); assert programs.read(name) == wanted\n"
        "    programs.close()\n"
    )
    users = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [user.wait() for user in users] == [0, 0, 0]
    ProgramStore(tmp_path, 5000).prune()
    assert sum(path.stat().st_size for path in tmp_path.glob("*/*")) <= 5000


def test_a_folder_that_cannot_be_written_keeps_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    programs = ProgramStore(tmp_path / "file", 10**6)
    programs.write("job/step", b"data")
    assert programs.read("job/step") is None


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 1000))))
def test_only_old_unfinished_files_are_abandoned(given: list[tuple[bool, float]]) -> None:
    entries = [
        Entry(Path(f"{'.' if is_unfinished else ''}{number}"), 1, used_s)
        for number, (is_unfinished, used_s) in enumerate(given)
    ]
    found = list(abandoned(entries, now_s=1000.0))
    for entry, (is_unfinished, used_s) in zip(entries, given, strict=True):
        assert (entry in found) == (is_unfinished and used_s < 1000.0 - ABANDONED_S)


@pytest.fixture
def limit(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.delenv(PROGRAMS_BYTES, raising=False)
    yield monkeypatch


@pytest.mark.parametrize(
    ("text", "expected"), [("", store.DEFAULT_BYTES), ("0", 0), ("1000", 1000)]
)
def test_the_limit_is_that_of_the_environment(
    limit: pytest.MonkeyPatch, text: str, expected: int
) -> None:
    limit.setenv(PROGRAMS_BYTES, text)
    assert store.limit_bytes() == expected


def test_without_the_variable_the_limit_is_the_default(limit: pytest.MonkeyPatch) -> None:
    assert store.limit_bytes() == store.DEFAULT_BYTES


@pytest.mark.parametrize("text", ["8 GiB", "-1", "1e9", "\u00b2", "1.5"])
def test_a_limit_that_is_no_number_is_an_error(limit: pytest.MonkeyPatch, text: str) -> None:
    limit.setenv(PROGRAMS_BYTES, text)
    with pytest.raises(ConfigError, match=f"{PROGRAMS_BYTES}={text}: expected a number of bytes"):
        store.limit_bytes()
