"""The folder of a cluster's queue: one file per entry, a lock, and the process that serves it.

    $XDG_STATE_HOME/slipway/queue/CLUSTER/
        lock                   held while entries change
        worker                 held while a worker serves the queue; its process id
        worker.log             what the worker has done
        RUN.json               an entry
        RUN.environment        the variables that the run is started with, secrets included

Only the user can read it. Every file is replaced atomically, so that a reader needs no lock.
"""

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from launcher.cluster.schema import ClusterRef, cluster_key
from launcher.core.environment import child_environment
from launcher.core.errors import InternalError, UsageError
from launcher.core.exit_codes import OK
from launcher.core.files import (
    NoStateFolderError,
    is_locked,
    lock,
    make_state_folder,
    read_object,
    replace_file,
    state_folder,
)
from launcher.core.messages import from_wire, to_wire
from launcher.queue.entries import Entry, waiting

WORKER = "launcher.commands.queue_worker"
LOCK_TIMEOUT_S = 30.0
"""Seconds to wait for the lock, which is held for milliseconds."""
START_TIMEOUT_S = 60.0
"""Seconds in which a worker starts."""
TICK_S = 1e-6
"""Smallest difference between the times of two entries."""


@dataclass(frozen=True)
class Place:
    """The place of a waiting run in its queue."""

    position: int
    """1 for the run that starts next."""
    priority: int
    """The job's `priority`: the highest starts first."""

    def __str__(self) -> str:
        return f"position {self.position}, priority {self.priority}"


class QueueError(UsageError):
    """A file of a queue cannot be used; the message gives the reason and a remedy."""


class Queue:
    """The queue of one cluster."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @classmethod
    def create(cls, name: str) -> "Queue":
        """Returns a queue by its name, see `queue_name`. Raises NoStateFolderError."""
        return cls(make_state_folder(f"queue/{name}"))

    def entries(self) -> list[Entry]:
        """Returns all entries. Raises QueueError."""
        return [entry for path in self.folder.glob("*.json") if (entry := _read(path))]

    def add(
        self,
        folder: Path,
        *,
        priority: int,
        is_preemptible: bool,
        grace_s: float,
        environment: Mapping[str, str],
        sizes: tuple[int, ...] = (),
        is_elastic: bool = False,
    ) -> Entry:
        """Adds the run in `folder`, which is started with `environment`; see `Entry`.

        Raises QueueError.
        """
        with self._locked():
            newest = max((entry.entered for entry in self.entries()), default=0.0)
            entry = Entry(
                folder=folder,
                priority=priority,
                is_preemptible=is_preemptible,
                grace_s=grace_s,
                sizes=sizes,
                is_elastic=is_elastic,
                entered=max(time.time(), newest + TICK_S),
            )
            replace_file(self._environment_path(entry), json.dumps(dict(environment)))
            self._write(entry)
        return entry

    def update(self, entry: Entry, **changes: object) -> bool:
        """Changes an entry. Returns False when it is no longer there. Raises QueueError."""
        with self._locked():
            if not self._has(entry):
                return False
            self._write(replace(entry, **changes))
        return True

    def remove(self, entry: Entry) -> None:
        """Removes an entry, if it is still there. Raises QueueError."""
        with self._locked():
            if self._has(entry):
                self._path(entry).unlink()
                self._environment_path(entry).unlink(missing_ok=True)

    def environment(self, entry: Entry) -> dict[str, str]:
        """Returns the variables that an entry's run is started with."""
        return read_object(self._environment_path(entry))

    def places(self) -> dict[Path, Place]:
        """Returns the place of each waiting run, by its folder. Raises QueueError."""
        numbered = enumerate(waiting(self.entries()), start=1)
        return {entry.folder: Place(number, entry.priority) for number, entry in numbered}

    @contextmanager
    def serving(self) -> Iterator[bool]:
        """Makes this process the queue's worker; yields False when there is another one."""
        with (self.folder / "worker").open("a") as file:
            is_mine = lock(file)
            if is_mine:
                file.truncate(0)
                file.write(f"{os.getpid()}\n")
                file.flush()
            yield is_mine

    def start_worker(self, module: str = WORKER) -> None:
        """Starts the queue's worker in the background, unless there is one or nothing to do.

        `module` is the worker's program. Raises InternalError when it does not start.
        """
        if is_locked(self.folder / "worker") or not self.entries():
            return
        try:
            begun = subprocess.run(
                [sys.executable, "-m", module, str(self.folder)],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                env=child_environment(),
                timeout=START_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            why = f"no answer in {START_TIMEOUT_S:.0f} s"
        else:
            why = begun.stderr.strip() or f"exit code {begun.returncode}"
            if begun.returncode == OK:
                return
        raise InternalError(f"{self.folder}: the worker of this queue did not start: {why}")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with (self.folder / "lock").open("a") as file:
            if not lock(file, LOCK_TIMEOUT_S):
                raise QueueError(
                    f"{self.folder}: another command has locked this queue for "
                    f"{LOCK_TIMEOUT_S:.0f} s. Find it with: fuser {file.name}"
                )
            yield

    def _has(self, entry: Entry) -> bool:
        """Returns whether an entry is still there: its run may have been added again."""
        found = _read(self._path(entry))
        return found is not None and found.entered == entry.entered

    def _write(self, entry: Entry) -> None:
        replace_file(self._path(entry), json.dumps(to_wire(entry)))

    def _path(self, entry: Entry) -> Path:
        return self.folder / f"{_file_stem(entry.folder)}.json"

    def _environment_path(self, entry: Entry) -> Path:
        return self.folder / f"{_file_stem(entry.folder)}.environment"


def queues() -> list[Queue]:
    """Returns the queues of all clusters, whether they have entries or not."""
    try:
        return [Queue(path) for path in sorted((state_folder() / "queue").glob("*/"))]
    except NoStateFolderError:
        return []


def queue_of(folder: Path) -> tuple[Queue, Entry] | None:
    """Returns the queue that has an entry of the run in `folder`, and the entry, or None.

    Raises QueueError.
    """
    for queue in queues():
        if entry := _read(queue.folder / f"{_file_stem(folder)}.json"):
            return queue, entry
    return None


def place_of(folder: Path) -> Place | None:
    """Returns the place of the run in `folder`; None when it does not wait. Raises QueueError."""
    queued = queue_of(folder)
    return queued[0].places().get(folder) if queued else None


def queue_name(cluster_ref: ClusterRef, base: Path) -> str:
    """Returns the name of a cluster's queue: a readable part, and a hash of the cluster's key.

    `base` is the folder that the path of a cluster file starts from. A simulated cluster has a
    queue of its own.
    """
    key = f"{cluster_key(cluster_ref.name, base)}{' simulated' * cluster_ref.simulated}"
    return f"{Path(cluster_ref.name).stem}-{_hash(key)}"


def _read(path: Path) -> Entry | None:
    """Returns the entry in a file, or None when there is no file. Raises QueueError."""
    if not path.exists():
        return None
    remedy = "The run is in its own folder: remove the file, then `launch resume RUN --queue`"
    fields = read_object(path)
    if not fields and not path.exists():  # just removed
        return None
    return from_wire(Entry, fields, str(path), QueueError, remedy)


def _file_stem(folder: Path) -> str:
    return f"{folder.name}-{_hash(str(folder))}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]
