"""Who makes a cache: one process at a time, and the others are told which one and how far it is."""

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
"""From a file system without flock."""
DEADLINE_S = 900.0
"""For a maker that comes no further."""
LOOK_EVERY_S = 0.1
PROGRESS_EVERY_S = 0.5
LINE_BYTES = 256

Progress = Callable[[int, int, str], None]
"""Called with bytes done, bytes in all, and who makes it ("": this process)."""
Tell = Callable[[int, int], None]
"""Called with bytes done and bytes in all, by who makes it."""


@contextmanager
def held(path: Path, waiting: Progress) -> Iterator[Tell]:
    """Holds an exclusive lock on the file `path`, which is there only while somebody has it.

    The lock ends with its process, whatever ends that. Raises TimeoutError where another process
    has it and comes no further.
    """
    descriptor = _wait(path, waiting)
    try:
        yield lambda done, total: _write(descriptor, done, total)
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def both(tell_others: Tell, progress: Progress) -> Tell:
    """To those who wait and to whoever listens here: now and then, and the end once."""
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
    """Whether it could be had at once; it is held then."""
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
        told = _read(path)
        if told != heard:
            heard, heard_at = told, time.monotonic()
            if told:
                waiting(*told)
        elif time.monotonic() - heard_at > DEADLINE_S:
            who = told[2] if told else "another process"
            raise TimeoutError(f"{who} holds {path} and made no progress for {DEADLINE_S:.0f} s")
        time.sleep(LOOK_EVERY_S)
    _write(descriptor, 0, 0)
    return descriptor


def _take(path: Path) -> int | None:
    """None: another process has it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # Who had it may have removed the file since: then this lock is on nothing.
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
    """In one piece, so that nobody reads half of it."""
    maker = f"process {os.getpid()} of {platform.node()}"
    os.pwrite(descriptor, json.dumps([done, total, maker]).encode().ljust(LINE_BYTES), 0)


def _read(path: Path) -> tuple[int, int, str] | None:
    """None where nothing is told yet."""
    try:
        done, total, maker = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return None
    return (done, total, maker) if total else None
