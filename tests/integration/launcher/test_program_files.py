"""Files of compiled programs on a host: which of them are shared, and how they arrive."""

import hashlib
import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from launcher.gang.program_archive import ProgramArchive
from launcher.host.program_files import ProgramFile, ProgramFiles
from trainer.contract.protocol.environment import PROGRAMS_BYTES
from trainer.contract.storage import compiled_programs
from trainer.contract.storage.compiled_programs import IN_RUN

STEP, CACHED = "executables/ab12/TrainProgram.step-0f", "compiled/jit_add-ff-cache"
DATA = bytes(range(256)) * 300
OLD_S = 100.0
HOSTS = 8


def file_of(name: str, data: bytes = DATA) -> ProgramFile:
    return ProgramFile(name, len(data), hashlib.sha256(data).hexdigest())


def write(path: Path, data: bytes = DATA, age_s: float = OLD_S) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    used_s = time.time() - age_s
    os.utime(path, (used_s, used_s))


def send(files: ProgramFiles, file: ProgramFile, data: bytes = DATA) -> str:
    """Sends a file in three parts; returns the problem."""
    third = len(data) // 3
    problems = [
        files.take(file, begin, data[begin : begin + third]) for begin in range(0, len(data), third)
    ]
    assert not any(problems[:-1])
    return problems[-1]


def written(folder: Path) -> list[str]:
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "slipway"


@pytest.fixture
def files(cache: Path) -> ProgramFiles:
    return ProgramFiles({"XDG_CACHE_HOME": str(cache.parent)})


def test_those_that_a_host_has_used_are_found_with_their_hashes(
    files: ProgramFiles, cache: Path
) -> None:
    for name in (STEP, CACHED):
        write(cache / name)
    write(cache / "executables/ab12/unused-1", age_s=10 * OLD_S)
    for name in ("executables/ab12/.step-0f.17", "executables/job.lock", "compiled/x-atime"):
        write(cache / name)
    write(cache / "compiled/half_written-1-cache", age_s=0.0)
    assert files.used_since(time.time() - 2 * OLD_S) == [file_of(STEP), file_of(CACHED)]
    assert b"".join(iter_parts(files, STEP)) == DATA
    assert files.part("executables/ab12/gone", 0) == b""


def iter_parts(files: ProgramFiles, name: str) -> Iterator[bytes]:
    begin = 0
    while part := files.part(name, begin):
        yield part
        begin += len(part)


def test_one_that_arrives_is_whole_under_its_name_and_overwrites_none(
    files: ProgramFiles, cache: Path
) -> None:
    write(cache / CACHED, b"of this host")
    assert files.missing([STEP, CACHED]) == [STEP]
    assert send(files, file_of(STEP)) == send(files, file_of(CACHED)) == ""
    assert (cache / STEP).read_bytes() == DATA
    assert (cache / CACHED).read_bytes() == b"of this host"
    assert written(cache) == [CACHED, STEP]
    assert files.missing([STEP, CACHED]) == []


def test_one_with_a_flipped_byte_is_refused(files: ProgramFiles, cache: Path) -> None:
    damaged = bytearray(DATA)
    damaged[len(damaged) // 2] ^= 1
    assert "its SHA-256 is another one" in send(files, file_of(STEP), bytes(damaged))
    assert written(cache.parent) == []
    assert send(files, file_of(STEP)) == "", "it can be sent again"


def test_one_that_begins_again_replaces_the_parts_before(files: ProgramFiles, cache: Path) -> None:
    assert files.take(file_of(STEP), 0, DATA[:1000]) == ""
    assert send(files, file_of(STEP)) == ""
    assert "without the one before" in files.take(file_of(CACHED), 1000, DATA[1000:])
    assert written(cache) == [STEP]


@pytest.mark.parametrize(
    "name", ["../escape", "executables/ab12/../../../escape", "/etc/escape", "compiled/escape"]
)
def test_a_name_that_is_no_programs_is_refused(
    files: ProgramFiles, cache: Path, tmp_path: Path, name: str
) -> None:
    assert "is no file of compiled programs" in send(files, file_of(name))
    archive = ProgramArchive(tmp_path, 10**9)
    assert "is no file of compiled programs" in archive.add(file_of(name), DATA)
    assert written(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "reason"),
    [("ro", "Read-only file system"), ("size=32k", "No space left on device")],
)
def test_a_read_only_or_full_disk_is_the_reason_and_keeps_no_part(
    cache: Path, tmp_path: Path, options: str, reason: str
) -> None:
    cache.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(cache)]
    if subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("needs the right to mount")
    try:
        files = ProgramFiles({"XDG_CACHE_HOME": str(cache.parent)})
        problem = send(files, file_of(STEP))
        assert problem == f"{(cache / STEP).parent} cannot be written: {reason}"
        assert written(cache) == []
    finally:
        subprocess.run(["umount", str(cache)], check=True)


def test_a_host_that_keeps_no_programs_lacks_none(cache: Path) -> None:
    write(cache / STEP)
    files = ProgramFiles({"XDG_CACHE_HOME": str(cache.parent), PROGRAMS_BYTES: "0"})
    assert files.used_since(0.0) == files.missing([CACHED]) == []
    assert files.folder_id == ""


def test_two_hosts_see_by_its_id_that_they_share_a_folder(tmp_path: Path) -> None:
    one, same, other = (
        ProgramFiles({"XDG_CACHE_HOME": str(tmp_path / name)}).folder_id for name in "aab"
    )
    assert one == same != other


def test_hosts_that_look_at_once_see_one_id_of_a_shared_folder(tmp_path: Path) -> None:
    begin = Barrier(HOSTS)

    def look(folder: Path) -> str:
        begin.wait()
        return compiled_programs.folder_id(folder)

    with ThreadPoolExecutor(HOSTS) as hosts:
        for round_ in range(100):
            folder = tmp_path / str(round_)
            ids = set(hosts.map(look, [folder] * HOSTS))
            assert len(ids) == 1 and ids != {""}
            assert [path.name for path in folder.iterdir()] == [compiled_programs.ID_FILE]


def test_the_archive_outlives_the_command_and_ends_at_its_limit(tmp_path: Path) -> None:
    archive = ProgramArchive(tmp_path, 2 * len(DATA))
    one, other = file_of(STEP), file_of("compiled/a-cache", DATA[1:])
    assert not archive.has(one)
    assert archive.add(one, DATA) == archive.add(other, DATA[1:]) == ""
    assert "its SHA-256 is another one" in archive.add(file_of("compiled/b-cache", b"b"), b"c")
    archive.record(0, [one, other])
    assert archive.has(file_of(CACHED)), "the content is here, under another name"
    archive.record(1, [file_of(CACHED), file_of("compiled/b-cache", b"b")])
    assert archive.refusal(file_of(CACHED, b"b")) == ""
    third = file_of("compiled/b-cache", DATA[2:])
    assert "more than 153,600 bytes" in archive.add(third, DATA[2:])

    found = ProgramArchive(tmp_path, 2 * len(DATA))
    assert "more than 153,600 bytes" in found.refusal(third)
    assert found.needed(1, on_cpu=True) == [file_of(CACHED)]
    assert {file.name for file in found.needed(1, on_cpu=False)} == {CACHED, "compiled/a-cache"}
    assert found.part(one, 0) + found.part(one, len(DATA)) == DATA


@pytest.mark.parametrize(
    "index", ['{"first": [["a", 1, "b"]]}', '{"0": [["executables/ab/a", 1, "../../../passwd"]]}']
)
def test_an_index_that_a_host_has_changed_names_no_other_file(tmp_path: Path, index: str) -> None:
    (tmp_path / IN_RUN).mkdir()
    (tmp_path / IN_RUN / "index.json").write_text(index)
    assert ProgramArchive(tmp_path, 10**9).needed(0, on_cpu=True) == []
