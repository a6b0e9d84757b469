"""File utilities: atomic writes, locks, JSON objects and the state folder."""

import errno
import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

from launcher.core.errors import UsageError
from launcher.core.wait import wait_until
from trainer.contract.storage import durable_files

LOCK_TIMEOUT_S = 0.5
"""Seconds to wait for a lock: `is_locked` in another process also holds it for a moment."""
RETRY_S = 0.01
LAST_BYTES = 1 << 18
NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)
"""Errors of file systems without flock: Lustre without `-o flock`, NFS without its lock daemon."""


class NoLocksError(UsageError, OSError):
    """Raised when a file system has no locks, so a lock by another process cannot be detected."""

    def __str__(self) -> str:
        return f"{self.filename}: its file system has no locks (flock: {self.strerror})"


class NoStateFolderError(UsageError, OSError):
    """Raised when state cannot be kept between commands; names the variable for its folder."""


def state_folder() -> Path:
    """Returns the folder of Slipway's state between commands.

    Its place follows the XDG Base Directory Specification. Raises NoStateFolderError when
    XDG_STATE_HOME is not set and the user has no home.
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
    """Creates a subfolder of the state folder that only this user can read, and returns it.

    Raises NoStateFolderError.
    """
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


def replace_file(path: Path, content: str | bytes) -> None:
    """Replaces a file atomically: readers see the old or the new one, even after a power loss."""
    durable_files.replace(path, content, str(os.getpid()))


def free_name(folder: Path) -> Path:
    """Returns the first of FOLDER.1, FOLDER.2, ... that does not exist."""
    number = 1
    while (free := folder.with_name(f"{folder.name}.{number}")).exists():
        number += 1
    return free


def end_torn_line(path: Path) -> None:
    """Ends a line that a crash cut off, so that the next line is not appended to it."""
    try:
        with path.open("r+b") as file:
            if file.seek(0, os.SEEK_END) == 0:
                return
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")
    except FileNotFoundError:
        pass  # no line has been written yet


def lock(file: IO[Any], timeout_s: float = LOCK_TIMEOUT_S) -> bool:
    """Locks an open file until this process ends or closes it.

    Returns False when the lock is still taken after `timeout_s`. Raises NoLocksError.
    """
    return wait_until(lambda: _try_lock(file, fcntl.LOCK_EX), timeout_s, poll_interval_s=RETRY_S)


def is_locked(path: Path) -> bool:
    """Returns whether a living process holds the file's lock. Does not change or create the file.

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
    """Returns the JSON object in a file, or {} when there is none."""
    try:
        return parse_object(path.read_bytes()) or {}
    except OSError:
        return {}


def last_object(path: Path, is_wanted: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """Returns the last wanted JSON line in a file's last 256 KiB, or {} when there is none."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LAST_BYTES))
            lines = file.read().splitlines()
    except OSError:
        return {}
    found = (value for line in reversed(lines) if (value := parse_object(line)))
    return next((value for value in found if is_wanted(value)), {})


def parse_object(line: bytes | str) -> dict[str, Any] | None:
    """Returns the JSON object in a line, or None when it has none, e.g. because it was cut off."""
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
