"""Checks before the first step that every host can write to the folder and sees the same files.

Orbax would hang for 20 minutes on a folder that the hosts do not share. The check takes a second.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path

import jax
from etils import epath

from trainer.checkpoint.commit import TEMPORARY
from trainer.checkpoint.errors import FolderError, OtherRunError, StaleError
from trainer.checkpoint.lease import LEASE, Lease
from trainer.contract.records.checkpoint_metadata import (
    ABOUT,
    BrokenError,
    is_committed,
    read_about,
    steps,
)
from trainer.contract.storage import cache_dirs
from trainer.contract.storage.paths import is_url
from trainer.contract.storage.retries import StorageError, retried
from trainer.distributed import consensus

SEEN_DEADLINE_S = 10.0
"""Network file systems may show a new file late (NFS caches a folder for up to about 3 s)."""
POLL_INTERVAL_S = 0.2
DELETED = ".deleted"
PROBE = ".probe-"
KINDS = (FolderError, OtherRunError, StaleError, StorageError)


def prepare(
    folder: epath.Path, run_id: str, attempt: int, state_bytes: int, warn: Callable[[str], None]
) -> Lease:
    """Creates the folder, takes its lease for this attempt, and checks it on every host.

    `warn` receives a line about a lease that cannot be read. Raises FolderError (not shared, not
    writable, no space for two checkpoints), OtherRunError, StaleError and StorageError (a transient
    problem), on all processes alike.
    """
    lease, error = None, None
    if jax.process_index() == 0:
        try:
            take = partial(_take, folder, run_id, attempt, state_bytes, warn)
            lease = retried(str(folder), take)
        except Exception as problem:  # from a file system, or from gcsfs and Google's libraries
            error = _explained(folder, problem, attempt)
    consensus.agree("checkpoints/made", error, KINDS)
    text = consensus.broadcast("checkpoints/lease", json.dumps(asdict(lease)) if lease else None)
    lease = Lease(**json.loads(text))
    consensus.agree("checkpoints/seen", _problem_here(folder, lease), KINDS)
    return lease


def run_id(run_dir: Path) -> str:
    """Returns the run id of process 0's folder, on all processes."""
    is_first = jax.process_index() == 0
    return consensus.broadcast("run_id", cache_dirs.run_id(run_dir) if is_first else None)


def remove_unfinished(folder: epath.Path, lease: Lease) -> None:
    """Removes what unfinished saves, deletions and checks left behind.

    Files of a newer attempt stay. Raises StaleError when this attempt no longer holds the lease.
    """
    lease.check(folder)
    for path in folder.iterdir():
        if path.name.endswith(DELETED):
            path.rmtree(missing_ok=True)
        elif path.name.isdecimal() and is_url(path):
            _remove_uncommitted(path, lease)
        elif label := _label_of(path.name):
            if lease.is_before(label):
                continue
            delete(path) if TEMPORARY in path.name else path.unlink(missing_ok=True)


def delete(step: epath.Path) -> None:
    """Deletes a checkpoint. What an interrupted deletion leaves never counts as a checkpoint."""
    if is_url(step):  # on an object store, a rename is a copy
        (step / ABOUT).unlink(missing_ok=True)
        step.rmtree(missing_ok=True)
        return
    step.rename(step.with_name(f"{step.name}{DELETED}")).rmtree()


def _label_of(name: str) -> str:
    """Returns the label in the name of a leftover file or folder; "" for any other name."""
    for start in (f".{LEASE}.", PROBE, f"{TEMPORARY}-"):
        _, found, label = name.partition(start)
        if found:
            return label
    return ""


def _remove_uncommitted(step: epath.Path, lease: Lease) -> None:
    """Removes objects of a step that its about.json does not list. Only for object stores."""
    committed = ""
    if is_committed(step):
        try:
            committed = read_about(step).data
        except BrokenError:
            return  # a restore moves it aside
    for path in step.iterdir():
        if path.name not in (committed, ABOUT) and not lease.is_before(path.name):
            path.rmtree() if path.is_dir() else path.unlink(missing_ok=True)


def _take(
    folder: epath.Path, run_id: str, attempt: int, state_bytes: int, warn: Callable[[str], None]
) -> Lease:
    if not is_url(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lease = Lease.take(folder, run_id, attempt, warn)
    remove_unfinished(folder, lease)
    _check_space(folder, state_bytes)
    return lease


def _check_space(folder: epath.Path, state_bytes: int) -> None:
    """Raises FolderError without space for two checkpoints: a save precedes any deletion."""
    if is_url(folder):
        return
    free = shutil.disk_usage(folder).free
    missing = max(1, 2 - len(steps(folder))) * state_bytes - free
    if missing > 0:
        raise FolderError(
            f"{folder} has no space for two checkpoints of {state_bytes / 2**20:,.1f} MiB: "
            f"{free / 2**20:,.1f} MiB are free. Delete files, or set storage to another folder"
        )


def _problem_here(folder: epath.Path, lease: Lease) -> Exception | None:
    """Returns None when this host sees process 0's lease and can write; otherwise the error."""
    try:
        if not retried(str(folder), partial(_wait_for_lease, folder, lease)):
            return FolderError(
                f"{folder} is not the folder that host-0000 sees: the hosts do not share it. "
                "Set storage to a folder that all hosts share"
            )
        retried(str(folder), partial(_write_probe, folder, lease))
    except Exception as error:
        return _explained(folder, error, lease.attempt)
    return None


def _write_probe(folder: epath.Path, lease: Lease) -> None:
    probe = folder / f"{PROBE}{lease.label}-{jax.process_index()}"
    probe.write_text("")
    probe.unlink()


def _wait_for_lease(folder: epath.Path, lease: Lease) -> bool:
    deadline = time.monotonic() + SEEN_DEADLINE_S
    while True:
        try:
            if json.loads((folder / LEASE).read_text()) == asdict(lease):
                return True
        except (FileNotFoundError, ValueError):
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL_S)


def _explained(folder: epath.Path, error: Exception, attempt: int) -> Exception:
    """Returns the error as one of KINDS.

    After attempt 1 it is StorageError: an earlier attempt could write, so the job is correct.
    """
    if isinstance(error, KINDS):
        return error
    why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    if is_url(folder) and isinstance(error, FileNotFoundError):
        why = "the bucket does not exist, or your credentials do not grant access to it"
    kind = FolderError if attempt == 1 else StorageError
    return kind(f"{folder}: cannot write checkpoints: {why}")
