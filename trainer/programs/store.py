"""A folder of compiled programs on disk, which several processes and runs share.

Its size has a limit: programs that were not used for the longest time are removed. A process holds
a shared lock (flock) on the file of every program that it uses, and a process that removes a file
holds an exclusive one. So the programs of a running process stay for its next attempt.
"""

import fcntl
import hashlib
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trainer.contract.config.loader import ConfigError
from trainer.contract.protocol.environment import PROGRAMS_BYTES
from trainer.contract.storage.compiled_programs import DEFAULT_BYTES, limit_of

DIGEST_BYTES = hashlib.sha256().digest_size
LOCK_S, POLL_INTERVAL_S = 5.0, 0.01
"""Maximum seconds to wait for another process that changes the folder, and between attempts."""
ABANDONED_S = 60.0
"""Age at which an unfinished file without a lock belongs to a process that has died."""
UNFINISHED = "."
"""Prefix of the names of files that are being written."""


def limit_bytes() -> int:
    """Returns the limit of `SLIPWAY_PROGRAMS_BYTES`. Raises ConfigError unless it is a number."""
    text = os.environ.get(PROGRAMS_BYTES)
    limit = limit_of(text)
    if limit is None:
        raise ConfigError(
            [f"{PROGRAMS_BYTES}={text}: expected a number of bytes, such as {DEFAULT_BYTES}"]
        )
    return limit


@dataclass(frozen=True)
class Entry:
    """A file of the folder."""

    path: Path
    size: int
    used_s: float
    """Time of the last use, in seconds since the epoch."""

    @property
    def is_unfinished(self) -> bool:
        return self.path.name.startswith(UNFINISHED)


class ProgramStore:
    """The programs in a folder, and locks on those that this process uses.

    A file system that cannot be written or has no locks is no error: programs are then not kept.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        """`limit` is the maximum number of bytes of all files; 0 keeps none."""
        self._folder, self._limit = folder, limit
        self._locks: dict[str, int] = {}
        """Descriptor of each file that this process uses."""

    def read(self, name: str) -> bytes | None:
        """Returns the data of a file, which is in use from now on.

        Returns None when it is missing or damaged.
        """
        try:
            descriptor = self._open(self._folder / name)
        except OSError:
            return None
        self._use(name, descriptor)
        try:
            with os.fdopen(os.dup(descriptor), "rb") as file:
                content = file.read()
        except OSError:
            return None
        digest, data = content[:DIGEST_BYTES], content[DIGEST_BYTES:]
        return data if hashlib.sha256(data).digest() == digest else None

    def write(self, name: str, data: bytes) -> None:
        """Writes data after its digest, and removes old files when all exceed the limit."""
        if len(data) + DIGEST_BYTES > self._limit:
            return
        path = self._folder / name
        temporary = path.with_name(f"{UNFINISHED}{path.name}.{os.getpid()}")
        try:
            with self._changing():
                path.parent.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
            self._use(name, descriptor)
            with os.fdopen(os.dup(descriptor), "wb") as file:
                file.write(hashlib.sha256(data).digest() + data)
            with self._changing():
                temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink()
        self.prune()

    def prune(self) -> None:
        """Removes the files that were not used for the longest time until the rest fits.

        Files in use stay, even when they exceed the limit.
        """
        entries = list(_entries(self._folder))
        finished = [entry for entry in entries if not entry.is_unfinished]
        excess = sum(entry.size for entry in finished) - self._limit
        dead = list(abandoned(entries, time.time()))
        if excess <= 0 and not dead:
            return
        with suppress(OSError), self._changing():
            for entry in dead:
                _remove_unused(entry.path)
            for entry in sorted(finished, key=lambda entry: entry.used_s):
                if excess > 0 and _remove_unused(entry.path):
                    excess -= entry.size
            for folder in self._folder.glob("*/"):
                with suppress(OSError):  # not empty
                    folder.rmdir()

    def close(self) -> None:
        """Ends the use of all files."""
        while self._locks:
            os.close(self._locks.popitem()[1])

    def _open(self, path: Path) -> int:
        """Opens a file with a shared lock, and records its use. Raises OSError."""
        while True:
            descriptor = os.open(path, os.O_RDONLY)
            try:
                _share(descriptor)
                os.utime(path)
                # Another process may have removed or replaced the file before the lock.
                if os.path.samestat(os.fstat(descriptor), path.stat()):
                    return descriptor
            except PermissionError:
                return descriptor  # a folder of another user: nothing removes its files from here
            except OSError:
                os.close(descriptor)
                raise
            os.close(descriptor)

    def _use(self, name: str, descriptor: int) -> None:
        """Holds a shared lock on an open file for as long as this process uses it."""
        _share(descriptor)
        before = self._locks.pop(name, None)
        self._locks[name] = descriptor
        if before is not None:
            os.close(before)

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lets no other process create, replace or remove a file meanwhile.

        Raises TimeoutError when another process, which may be stopped, does so for long.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            deadline_s = time.monotonic() + LOCK_S
            while not _locked(descriptor):
                if time.monotonic() > deadline_s:
                    raise TimeoutError(f"{self._folder}: another process changes it")
                time.sleep(POLL_INTERVAL_S)
            yield
        finally:
            os.close(descriptor)


def _share(descriptor: int) -> None:
    """Takes a shared lock, where the file system has locks."""
    with suppress(OSError):
        fcntl.flock(descriptor, fcntl.LOCK_SH)


def _locked(descriptor: int) -> bool:
    """Returns whether an exclusive lock could be taken."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def abandoned(entries: Iterable[Entry], now_s: float) -> Iterator[Entry]:
    """Yields the unfinished files whose writers have died, if nothing holds a lock on them."""
    for entry in entries:
        if entry.is_unfinished and now_s - entry.used_s > ABANDONED_S:
            yield entry


def _entries(folder: Path) -> Iterator[Entry]:
    """Yields the files of the folder's folders. Another process may remove some meanwhile."""
    for path in folder.glob("*/*"):
        with suppress(OSError):
            status = path.stat()
            yield Entry(path, status.st_size, status.st_mtime)


def _remove_unused(path: Path) -> bool:
    """Removes a file unless a process uses it; returns whether it is gone."""
    try:
        descriptor = os.open(path, os.O_RDWR)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        is_unused = _locked(descriptor)
        if is_unused:
            path.unlink(missing_ok=True)
        return is_unused
    except OSError:
        return False
    finally:
        os.close(descriptor)
