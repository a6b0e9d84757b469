"""A lock for building a cache: one process builds it, and waiting processes see its progress."""

import errno
import fcntl
import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from trainer.contract.config.loader import ConfigError

NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)
"""Errors of a file system without flock."""
DEADLINE_S = 900.0
"""Limit on the time without progress of the process that builds the cache."""
LOOK_EVERY_S = 0.1
PROGRESS_EVERY_S = 0.5
LINE_BYTES = 256

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and the process that builds ("": this one)."""
Tell = Callable[[int, int], None]
"""Called with bytes done and bytes in all, by the process that builds."""


@contextmanager
def held(path: Path, waiting: Progress) -> Iterator[Tell]:
    """Holds an exclusive lock on the file `path`, which exists only while a process has the lock.

    The lock ends with its process, however that ends. Raises TimeoutError when another process
    holds it and makes no progress.
    """
    descriptor = _wait(path, waiting)
    try:
        yield lambda done, total: _write(descriptor, done, total)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def both(tell_others: Tell, progress: Progress) -> Tell:
    """Returns a callback that reports to both: at most every PROGRESS_EVERY_S, and at the end."""
    shown_at, shown = 0.0, -1

    def tell(done: int, total: int) -> None:
        nonlocal shown_at, shown
        if done == total != shown or time.monotonic() - shown_at > PROGRESS_EVERY_S:
            tell_others(done, total)
            progress(done, total, "")
            shown_at, shown = time.monotonic(), done

    return tell


@contextmanager
def held_if_free(path: Path) -> Iterator[bool]:
    """Yields whether the lock was free; holds it in that case."""
    descriptor = _take(path)
    try:
        yield descriptor is not None
    finally:
        if descriptor is not None:
            path.unlink(missing_ok=True)
            os.close(descriptor)


def _wait(path: Path, waiting: Progress) -> int:
    heard, heard_at = None, time.monotonic()
    while (descriptor := _take(path)) is None:
        state = _read(path)
        if state != heard:
            heard, heard_at = state, time.monotonic()
            if state:
                waiting(*state)
        elif time.monotonic() - heard_at > DEADLINE_S:
            who = state[2] if state else "another process"
            raise TimeoutError(f"{who} holds {path} and made no progress for {DEADLINE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
    _write(descriptor, 0, 0)
    return descriptor


def _take(path: Path) -> int | None:
    """Returns the descriptor of the locked file, or None when another process has the lock."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # The last holder may have removed the file since: then this lock protects nothing.
        if os.path.samestat(os.fstat(descriptor), path.stat()):
            return descriptor
    except (BlockingIOError, FileNotFoundError):
        pass
    except OSError as error:
        os.close(descriptor)
        if error.errno not in NO_LOCKS:
            raise
        raise ConfigError(
            [
                f"{path}: its file system has no locks (flock: {error.strerror}). Set "
                "XDG_CACHE_HOME to a folder of another one"
            ]
        ) from None
    os.close(descriptor)
    return None


def _write(descriptor: int, done: int, total: int) -> None:
    """Writes the progress with one call, so that no process reads half of it."""
    maker = f"process {os.getpid()} of {platform.node()}"
    os.pwrite(descriptor, json.dumps([done, total, maker]).encode().ljust(LINE_BYTES), 0)


def _read(path: Path) -> tuple[int, int, str] | None:
    """Returns None when no progress is recorded yet."""
    try:
        done, total, maker = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return (done, total, maker) if total else None
