"""Makes the folder of a run: whole or not at all, and never over another run."""

import errno
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from launcher.core.files import free_name, replace_file
from launcher.queue.folder import queue_of
from launcher.runs import registry
from launcher.runs.folder import (
    REMOTE,
    RunFolderError,
    is_alive,
    refuse_queued,
    resume_command,
    run_word,
)
from launcher.runs.records import KubernetesRecord

LEFT = (REMOTE, KubernetesRecord.FILE)
"""Files in a run's folder while the run may have remote resources, which `launch stop` ends."""


def make_folder(folder: Path, job: str, *, fresh: bool) -> None:
    """Creates a folder for the copy of a remote run, with its job.

    With `fresh`, an earlier folder is moved aside. Raises RunFolderError, see `RunDir.create`.
    """
    earlier = earlier_folder(folder, fresh=fresh)
    with complete_folder(folder, job):
        if earlier:
            earlier.rename(free_name(earlier))


def earlier_folder(folder: Path, *, fresh: bool) -> Path | None:
    """Returns an existing folder of that name, to be moved aside, or None.

    Raises RunFolderError when it must not be moved.
    """
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    if not fresh and not registry.is_run(folder):
        raise RunFolderError(
            f"{folder} exists and is no run's folder. Give this run another name (name=...), or "
            "move the folder aside (--fresh)"
        )
    if not fresh:
        raise RunFolderError(
            f"{folder}: there is a run of this name already. Go on with it "
            f"({resume_command(folder)}), give this one another name (name=...), or move the "
            "old one aside and start from scratch (--fresh)"
        )
    refuse_queued(folder)
    if is_alive(folder):
        raise RunFolderError(
            f"{folder}: this run is running now. End it first, or say name=... for another one"
        )
    if queue_of(folder):
        raise RunFolderError(
            f"{folder}: this run is in a queue. Remove it first (launch stop {run_word(folder)}), "
            "or say name=... for another one"
        )
    if left := next((name for name in LEFT if (folder / name).exists()), ""):
        raise RunFolderError(
            f"{folder}: this run may still have hosts elsewhere ({left} says which). End it first "
            f"(launch stop {run_word(folder)}), or say name=... for another one"
        )
    return folder


@contextmanager
def complete_folder(folder: Path, job: str) -> Iterator[Path]:
    """Yields a folder that is renamed to `folder` at the end, and removed after an error.

    Raises RunFolderError when it cannot be created.
    """
    making = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    try:
        (making / "logs").mkdir(parents=True)
        replace_file(making / "job.yaml", job)
        yield making
        making.rename(folder)
    except OSError as error:
        shutil.rmtree(making, ignore_errors=True)
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            raise RunFolderError(f"{folder}: another command has made it just now") from None
        raise RunFolderError(
            f"{folder}: the run's folder cannot be made: {error.strerror}. "
            "Say --runs DIR for another place"
        ) from None
    except BaseException:
        shutil.rmtree(making, ignore_errors=True)
        raise
