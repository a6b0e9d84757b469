"""Logs that grow and are rotated: nothing is lost, nothing comes twice, nothing is too long."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.host.log_reader import CHUNK_BYTES, LONGEST_LINE, Lines, LogFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "host-0000.log"


def add(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def rotate(path: Path, kept: int = 5) -> None:
    """As the relay does it: only by renames."""
    for number in range(kept - 1, 0, -1):
        older = Path(f"{path}.{number}")
        if older.exists():
            older.rename(f"{path}.{number + 1}")
    path.rename(f"{path}.1")


def rest(log: LogFile) -> bytes:
    return b"".join(iter(log.read, b""))


def read(path: Path, tail: int | None = None) -> bytes:
    log = LogFile(path, tail)
    try:
        return rest(log)
    finally:
        log.close()


def test_a_log_is_read_from_its_oldest_rotation_on(path: Path) -> None:
    for number in range(3):
        add(path, b"part %d\n" % number)
        rotate(path)
    add(path, b"the end")
    assert read(path) == b"part 0\npart 1\npart 2\nthe end"


def test_a_log_that_does_not_exist_yet_is_read_from_its_beginning(path: Path) -> None:
    log = LogFile(path, tail=1)
    assert rest(log) == b""
    add(path, b"a\nb\nc\n")
    assert rest(log) == b"a\nb\nc\n"
    log.close()


def test_what_is_added_is_followed_over_rotations(path: Path) -> None:
    add(path, b"before\n")
    log = LogFile(path, tail=0)
    assert rest(log) == b""
    add(path, b"half a ")
    assert rest(log) == b"half a "
    add(path, b"line\n")
    rotate(path)
    add(path, b"second\n")
    rotate(path)
    add(path, b"third\n")
    assert rest(log) == b"line\nsecond\nthird\n"
    rotate(path)
    assert rest(log) == b""
    log.close()


def test_a_reader_that_was_late_goes_on_with_the_oldest_that_is_left(path: Path) -> None:
    add(path, b"0\n")
    log = LogFile(path)
    assert rest(log) == b"0\n"
    for number in range(1, 5):
        rotate(path, kept=2)
        add(path, b"%d\n" % number)
    assert rest(log) == b"2\n3\n4\n"
    log.close()


@given(st.lists(st.binary(max_size=20), max_size=6), st.integers(0, 12))
def test_the_tail_is_the_last_lines_wherever_the_log_was_rotated(
    tmp_path_factory: pytest.TempPathFactory, parts: list[bytes], tail: int
) -> None:
    path = tmp_path_factory.mktemp("logs") / "host-0000.log"
    for part in parts:
        add(path, part)
        rotate(path, kept=10)
    path.touch()
    lines = b"".join(parts).split(b"\n")
    lines = [line + b"\n" for line in lines[:-1]] + [line for line in lines[-1:] if line]
    assert read(path, tail) == b"".join(lines[-tail:] if tail else [])


def test_the_tail_of_a_large_log(path: Path) -> None:
    long_line = b"x" * (3 * CHUNK_BYTES) + b"\n"
    add(path, b"first\n" + long_line + b"last\n")
    assert read(path, 1) == b"last\n"
    assert read(path, 2) == long_line + b"last\n"


def test_lines_come_whole_whatever_the_pieces() -> None:
    text = "grün\r\nzwei\n\nlast"
    for size in range(1, 8):
        lines, data = Lines(), text.encode()
        found = [line for i in range(0, len(data), size) for line in lines.add(data[i : i + size])]
        assert [*found, *lines.rest()] == ["grün", "zwei", "", "last"]


def test_bytes_that_are_not_utf_8_are_replaced() -> None:
    assert Lines().add(b"\xff\xfe\x00 \x80\n") == ["\ufffd\ufffd\x00 \ufffd"]


def test_a_line_of_many_megabytes_comes_in_pieces() -> None:
    lines, pieces = Lines(), []
    for _ in range(40):
        pieces += lines.add(b"x" * CHUNK_BYTES)
    pieces += lines.add(b"\nnext\n")
    assert max(map(len, pieces)) <= LONGEST_LINE + CHUNK_BYTES
    assert len("".join(pieces)) == 40 * CHUNK_BYTES + len("next")
    assert pieces[-1] == "next"
