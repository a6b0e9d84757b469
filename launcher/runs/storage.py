"""Separates a new run's checkpoints in `storage:` from those of every other run."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from launcher.core.errors import UsageError
from launcher.core.files import free_name, read_object, replace_file
from launcher.planning.spec import LaunchSpec
from trainer.contract.config.command import load_job
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError, dump
from trainer.contract.records.checkpoint_metadata import folder_of
from trainer.contract.storage.paths import is_url

L = TypeVar("L", bound=LaunchSpec)
LEASE = "lease.json"


class CheckpointFolderError(UsageError):
    """The folder of checkpoints cannot be used; the message gives the reason and a remedy."""


def apart_from_earlier(launch: L) -> L:
    """Returns the launch of `--fresh`, in new storage if the earlier run's cannot be moved aside.

    That is a bucket, where nothing can be renamed, or a folder that this machine does not see.
    Remote hosts move their folders themselves.
    """
    storage, name = launch.job.storage, launch.job.name
    if not storage or not _has_used(launch.run_dir, storage, name):
        return launch
    if not is_url(storage) and (launch.is_remote or Path(storage).expanduser().is_dir()):
        return launch
    own = f"{storage.rstrip('/')}/{name}.{uuid.uuid4().hex[:8]}"
    return replace(launch, job=launch.job.model_copy(update={"storage": own}))


def refuse_others(launch: LaunchSpec, earlier: Path | None) -> None:
    """Raises CheckpointFolderError for checkpoints of another run than the one in `earlier`."""
    checkpoints = _visible(launch)
    if checkpoints is None:
        return
    holder = read_object(checkpoints / LEASE).get("run_id")
    if holder and (earlier is None or holder != _run_id(earlier)):
        saved = checkpoints.parent
        raise CheckpointFolderError(
            f"{checkpoints} holds the checkpoints of another run. Give this run another name "
            f"(name=...), or move them aside (mv {saved} {free_name(saved)})"
        )


def move_aside(launch: LaunchSpec, earlier: Path) -> None:
    """Moves STORAGE/NAME of the run in `earlier` to STORAGE/NAME.1/NAME, or .2, ...

    That run's job.yaml gets the new storage. Raises CheckpointFolderError.
    """
    checkpoints = _visible(launch)
    if checkpoints is None or not (checkpoints / LEASE).exists():
        return
    saved = checkpoints.parent
    storage = free_name(saved)
    try:
        storage.mkdir()
        saved.rename(storage / saved.name)
    except OSError as error:
        raise CheckpointFolderError(
            f"{saved} cannot be moved aside: {error.strerror}. Give this run another name "
            "(name=...)"
        ) from None
    job = load_job(earlier / "job.yaml").value
    replace_file(earlier / "job.yaml", dump(job.model_copy(update={"storage": str(storage)})))


def _visible(launch: LaunchSpec) -> Path | None:
    """Returns the run's checkpoint folder in `storage`; None when that is not a local folder."""
    job = launch.job
    if not isinstance(job, Job) or not job.storage or job.checkpoint is None:
        return None
    folder = folder_of(job, launch.run_dir)
    return None if is_url(folder) else Path(folder).expanduser()


def _has_used(run: Path, storage: str, name: str) -> bool:
    """Returns whether the run in a folder keeps its checkpoints in or below that storage."""
    try:
        before = load_job(run / "job.yaml").value.storage or ""
    except (ConfigError, OSError):
        return False
    return before == storage or before.startswith(f"{storage.rstrip('/')}/{name}.")


def _run_id(run: Path) -> str:
    try:
        return (run / "run_id").read_text(encoding="utf-8").strip()
    except OSError:
        return ""
