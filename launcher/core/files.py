"""Small things that are done with files, each in one way."""

import errno
import fcntl
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from trainer.contract.storage import durable_files

LOCK_TIMEOUT_S = 0.5
"""Whoever asks whether a file is locked holds it for a moment too."""
RETRY_S = 0.01
LAST_BYTES = 1 << 18
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""From a file system without flock: Lustre without `-o flock`, NFS whose lock daemon is down."""


class NoLocksError(OSError):
    """The file system of a file has no locks: whether another process holds it is not known."""

    def __str__(self) -> str:
        return f"{self.filename}: its file system has no locks (flock: {self.strerror})"


class NoStateFolderError(OSError):
    """What is remembered between commands cannot be kept; says which variable names a folder."""


def state_folder() -> Path:
    """Where Slipway remembers things between commands, by the XDG rules.

    Raises NoStateFolderError for a user without a home.
    """
    base = os.environ.get("XDG_STATE_HOME")
    try:
        return (Path(base) if base else Path.home() / ".local" / "state") / "slipway"
    except RuntimeError:
        raise NoStateFolderError(
            "HOME is not set, and this user has no home: set XDG_STATE_HOME to a folder that "
            "Slipway may write to"
        ) from None


def make_state_folder(name: str) -> Path:
    """One of its folders, which only this user can read. Raises NoStateFolderError."""
    folder = state_folder() / name
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise NoStateFolderError(
            f"{folder} cannot be written: {error.strerror}. Set XDG_STATE_HOME to another folder"
        ) from None
    return folder


def replace_file(path: Path, text: str) -> None:
    """Writes a file so that a reader, or a loss of power, meets the old one or the new one."""
    durable_files.replace(path, text, str(os.getpid()))


def free_name(folder: Path) -> Path:
    """FOLDER.1, FOLDER.2, ...: the first that is not there."""
    number = 1
    while (free := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return free


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


def lock(file: IO[Any], timeout_s: float = LOCK_TIMEOUT_S) -> bool:
    """Take the lock of an open file, until this process ends or closes it; False: it is taken.

    Raises NoLocksError.
    """
    deadline = time.monotonic() + timeout_s
    while not _try_lock(file, fcntl.LOCK_EX):
        if time.monotonic() >= deadline:
            return False
        time.sleep(RETRY_S)
    return True


def is_locked(path: Path) -> bool:
    """Whether a living process holds the file's lock; the file is not changed or made.

    Raises NoLocksError.
    """
    try:
        with path.open("rb") as file:
            return not _try_lock(file, fcntl.LOCK_SH)
    except NoLocksError:
        raise
    except OSError:
        return False


def read_object(path: Path) -> dict[str, Any]:
    """A file with one JSON object; empty where there is none."""
    try:
        return parse_object(path.read_bytes()) or {}
    except OSError:
        return {}


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
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        raise NoLocksError(error.errno, error.strerror, file.name) from None
    return True
