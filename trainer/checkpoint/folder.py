"""Before the first step: can every host write its checkpoints here, and see those of the others?

Orbax would hang for 20 minutes on a folder that the hosts do not share. A look takes a second.
"""

import json
import os
import shutil
import time
from dataclasses import asdict
from pathlib import Path

import jax
from etils import epath

from trainer import agreement, folders
from trainer.checkpoint.errors import FolderError, OtherRunError, StaleError
from trainer.checkpoint.lease import LEASE, Lease
from trainer.spec.checkpoints import is_committed, is_url, steps

SEEN_DEADLINE_S = 10.0
"""Network file systems may show a new file late (NFS caches a folder for up to 3 s or so)."""
LOOK_S = 0.2
TEMPORARY = ".orbax-checkpoint-tmp"
DELETED = ".deleted"
PROBE = ".probe-"
KINDS = (FolderError, OtherRunError, StaleError)


def prepare(folder: epath.Path, run_id: str, attempt: int, state_bytes: int) -> Lease:
    """Make the folder, take it for this attempt, and check it on every host.

    Raises FolderError (not shared, not writable, no room for two checkpoints), OtherRunError and
    StaleError, on all processes alike.
    """
    lease, error = None, None
    if jax.process_index() == 0:
        try:
            lease = _take(folder, run_id, attempt, state_bytes)
        except Exception as problem:  # of a file system, or of gcsfs and Google's libraries
            error = _explained(folder, problem)
    agreement.agree("checkpoints/made", error, KINDS)
    text = agreement.tell("checkpoints/lease", json.dumps(asdict(lease)) if lease else None)
    lease = Lease(**json.loads(text))
    agreement.agree("checkpoints/seen", _problem_here(folder, lease), KINDS)
    return lease


def run_id(run_dir: Path) -> str:
    """That of process 0's folder, on all processes."""
    is_first = jax.process_index() == 0
    return agreement.tell("run_id", folders.run_id(run_dir) if is_first else None)


def remove_unfinished(folder: epath.Path) -> None:
    """What saves, deletions and checks left behind that never came to their end."""
    for path in folder.iterdir():
        half_a_step = path.name.isdecimal() and not is_committed(path)
        if TEMPORARY in path.name or path.name.endswith(DELETED) or half_a_step:
            path.rmtree(missing_ok=True)
        elif path.name.startswith((f".{LEASE}", PROBE)):
            path.unlink(missing_ok=True)


def delete(step: epath.Path) -> None:
    """Delete a checkpoint; whatever ends the deletion halfway, what is left is no checkpoint."""
    if is_url(step):  # there renaming is copying
        step.rmtree()
        return
    step.rename(step.with_name(f"{step.name}{DELETED}")).rmtree()


def _take(folder: epath.Path, run_id: str, attempt: int, state_bytes: int) -> Lease:
    if not is_url(folder):
        folder.mkdir(parents=True, exist_ok=True)
    lease = Lease.take(folder, run_id, attempt)
    remove_unfinished(folder)
    _check_room(folder, state_bytes)
    return lease


def _check_room(folder: epath.Path, state_bytes: int) -> None:
    """A new checkpoint is whole before an old one goes: there must be room for two."""
    if is_url(folder):
        return
    free = shutil.disk_usage(folder).free
    missing = max(1, 2 - len(steps(folder))) * state_bytes - free
    if missing > 0:
        raise FolderError(
            f"{folder} has no room for two checkpoints of {state_bytes / 2**20:,.1f} MiB: "
            f"{free / 2**20:,.1f} MiB are free. Make room, or say storage: for another place"
        )


def _problem_here(folder: epath.Path, lease: Lease) -> Exception | None:
    """Whether this host sees process 0's lease and can write beside it."""
    try:
        if not _sees(folder, lease):
            return FolderError(
                f"{folder} is not the folder that host-0000 sees: the hosts do not share it. "
                "Say storage: for a place that all of them reach"
            )
        probe = folder / f"{PROBE}{lease.id}-{jax.process_index()}"
        probe.write_text("")
        probe.unlink()
    except Exception as error:
        return _explained(folder, error)
    return None


def _sees(folder: epath.Path, lease: Lease) -> bool:
    deadline = time.monotonic() + SEEN_DEADLINE_S
    while True:
        try:
            if json.loads((folder / LEASE).read_text()) == asdict(lease):
                return True
        except (FileNotFoundError, ValueError):
            pass
        if time.monotonic() > deadline:
            return False
        time.sleep(LOOK_S)


def _explained(folder: epath.Path, error: Exception) -> Exception:
    if isinstance(error, KINDS):
        return error
    why = os.strerror(error.errno) if isinstance(error, OSError) and error.errno else str(error)
    if is_url(folder) and isinstance(error, FileNotFoundError):
        why = "there is no such bucket, or it is not shown to you"
    return FolderError(f"{folder}: checkpoints cannot be written here: {why}")
