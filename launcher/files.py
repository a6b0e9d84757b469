"""Small things that are done with files, each in one way."""

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

LOCK_TIMEOUT_S = 0.5
"""Whoever asks whether a file is locked holds it for a moment too."""
RETRY_S = 0.01
LAST_BYTES = 1 << 18


def state_folder() -> Path:
    """Where Slipway remembers things between commands, by the XDG rules."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(base) / "slipway"


def replace_file(path: Path, text: str) -> None:
    """Write a file so that a reader sees the old one or the new one, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


def end_torn_line(path: Path) -> None:
    """What a crash cut off must not take the next line with it."""
    try:
        with path.open("r+b") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
    except FileNotFoundError:
        pass  # it has not come to its first line


def lock(file: IO[Any]) -> bool:
    """Take the lock of an open file, until this process ends or closes it; False: it is taken."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while not _try_lock(file, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            return False
        time.sleep(RETRY_S)
    return True


def is_locked(path: Path) -> bool:
    """Whether a living process holds the file's lock; the file is not changed or made."""
    try:
        with path.open("rb") as file:
            return not _try_lock(file, fcntl.LOCK_SH)
    except OSError:
        return False


def read_object(path: Path) -> dict[str, Any]:
    """A file with one JSON object; empty where there is none."""
    try:
        return parse_object(path.read_bytes()) or {}
    except OSError:
        return {}


def read_objects(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file with one on each line; torn lines are left out."""
    try:
        with path.open("rb") as lines:
            yield from filter(None, map(parse_object, lines))
    except OSError:
        return


def last_object(path: Path, is_wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The last such line of a file, looked for in its last 256 KiB; empty where there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return {}
    found = (value for line in reversed(lines) if (value := parse_object(line)))
    return next((value for value in found if is_wanted(value)), {})


def parse_object(line: bytes | str) -> dict[str, Any] | None:
    """None for what is no JSON object, such as a line that was cut off."""
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def _try_lock(file: IO[Any], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
