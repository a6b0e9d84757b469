"""Faults of memory and of storage for soak.py."""

import os
import random
import secrets
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.faults import Fire
from tests.support.assert_no_leftovers import Traces
from tests.support.faulty_storage import FaultyStorage
from tests.support.processes import wait_until
from tests.support.programs import trainer_of

MEMORY_LIMIT_BYTES = 256 << 10
"""A limit that a program's next allocations exceed."""
CGROUPS = (
    (Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"),
    (Path("/sys/fs/cgroup"), "memory.max"),
)
"""Folder of the memory controller, versions 1 and 2, and the file of its limit."""
STORAGE_FAILS_S = (5.0, 15.0)
STORAGE_IS_SLOW_S, SLOW_OPEN_S = 10.0, 1.0


class NoMemoryCgroupError(Exception):
    """The memory of a process cannot be limited on this machine."""


@contextmanager
def memory_kills() -> Iterator[Fire]:
    """Yields a fault that makes the kernel kill a trainer for lack of memory.

    Raises NoMemoryCgroupError.
    """
    folders: list[Path] = []

    def fire(traces: Traces, process: int) -> float:
        victim = trainer_of(traces, process)
        folder, limit = _new_cgroup()
        folders.append(folder)
        (folder / limit).write_text(str(MEMORY_LIMIT_BYTES))
        fired = time.time()
        (folder / "cgroup.procs").write_text(str(victim))
        return fired

    _remove(_new_cgroup()[0])
    try:
        yield fire
    finally:
        for folder in folders:
            _remove(folder)


def storage_errors(storage: FaultyStorage, dice: random.Random) -> Fire:
    """Kills a trainer, and makes checkpoints unreadable for its successors for a while."""

    def fire(traces: Traces, process: int) -> float:
        storage.fail()
        threading.Timer(dice.uniform(*STORAGE_FAILS_S), storage.recover).start()
        fired = time.time()
        os.kill(trainer_of(traces, process), signal.SIGKILL)
        return fired

    return fire


def slow_storage(storage: FaultyStorage) -> Fire:
    """Makes every file of a checkpoint slow to write for a while."""

    def fire(_: Traces, process: int) -> float:
        storage.slow_down(SLOW_OPEN_S)
        threading.Timer(STORAGE_IS_SLOW_S, storage.recover).start()
        return time.time()

    return fire


def _new_cgroup() -> tuple[Path, str]:
    """Yields an empty memory cgroup, and the file of its limit."""
    for root, limit in CGROUPS:
        folder = root / f"slipway-soak-{secrets.token_hex(4)}"
        with suppress(OSError):
            folder.mkdir()
            if (folder / limit).exists():
                return folder, limit
            folder.rmdir()
    raise NoMemoryCgroupError("memory kills need root and a memory cgroup that can be changed")


def _remove(folder: Path) -> None:
    """Removes a cgroup, once the kernel has released its processes."""

    def is_removed() -> bool:
        with suppress(OSError):
            folder.rmdir()
        return not folder.exists()

    wait_until(is_removed)
