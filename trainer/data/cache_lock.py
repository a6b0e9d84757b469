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
POLL_INTERVAL_S = 0.1
PROGRESS_EVERY_S = 0.5
LINE_BYTES = 256

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in total, and the process that builds ("": this one)."""
Report = Callable[[int, int], None]
"""Called with bytes done and bytes in total, by the process that builds."""


@contextmanager
def held(path: Path, waiting: Progress) -> Iterator[Report]:
    """Holds an exclusive lock on the file `path`, which exists only while a process has the lock.

    Yields a callback that publishes progress to waiting processes; `waiting` receives the progress
    of the holder. The lock ends with its process, however that ends. Raises TimeoutError when
    another process holds it without progress for DEADLINE_S, and ConfigError on a file system
    without locks.
    """
    descriptor = _wait(path, waiting)
    try:
        yield lambda done, total: _write(descriptor, done, total)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def report_to_both(publish: Report, progress: Progress) -> Report:
    """Returns a callback that calls both: at most every PROGRESS_EVERY_S, and at the end."""
    shown_at, shown = 0.0, -1

    def report(done: int, total: int) -> None:
        nonlocal shown_at, shown
        if done == total != shown or time.monotonic() - shown_at > PROGRESS_EVERY_S:
            publish(done, total)
            progress(done, total, "")
            shown_at, shown = time.monotonic(), done

    return report


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
    last, changed_at = None, time.monotonic()
    while (descriptor := _take(path)) is None:
        state = _read(path)
        if state != last:
            last, changed_at = state, time.monotonic()
            if state:
                waiting(*state)
        elif time.monotonic() - changed_at > DEADLINE_S:
            builder = state[2] if state else "another process"
            raise TimeoutError(
                f"{builder} holds {path} and has made no progress for {DEADLINE_S:.0f} s. "
                "End that process, then start the run again"
            )
        time.sleep(POLL_INTERVAL_S)
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
                f"{path}: the file system does not support locks (flock: {error.strerror}). "
                "Set XDG_CACHE_HOME to a folder on another file system"
            ]
        ) from None
    os.close(descriptor)
    return None


def _write(descriptor: int, done: int, total: int) -> None:
    """Writes the progress with one call, so that no process reads half of it."""
    builder = f"process {os.getpid()} of {platform.node()}"
    os.pwrite(descriptor, json.dumps([done, total, builder]).encode().ljust(LINE_BYTES), 0)


def _read(path: Path) -> tuple[int, int, str] | None:
    """Returns (bytes done, bytes in total, process), or None when no progress is recorded yet."""
    try:
        done, total, builder = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return (done, total, builder) if total else None
