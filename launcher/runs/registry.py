"""The runs that this user has started from any folder, one small file each."""

import errno
import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from launcher.core.files import (
    NoStateFolderError,
    make_state_folder,
    read_object,
    replace_file,
    state_folder,
)

GONE = (errno.ENOENT, errno.ENOTDIR)
"""Errors of a run's folder that does not exist any more."""


def register(folder: Path, secrets: Sequence[str]) -> None:
    """Records a run by its folder, for commands that are called in other folders.

    `secrets`: the names in its job. A later change of job.yaml does not add to them.
    """
    record = {"folder": str(folder), "secrets": [*secrets]}
    try:
        replace_file(make_state_folder("runs") / _file_name(folder), json.dumps(record))
    except OSError:
        pass  # no writable home: the run is found by its path


def registered() -> list[Path]:
    """Returns the folders of all recorded runs that can be read, and removes records of others.

    The record of a folder that is out of reach now, such as one of a file server, stays.
    """
    found = []
    try:
        entries = sorted((state_folder() / "runs").glob("*.json"))
    except NoStateFolderError:
        return []
    for entry in entries:
        recorded = str(read_object(entry).get("folder", ""))
        folder = Path(recorded or entry)  # a damaged record names no run: not the current folder
        if is_run(folder):
            found.append(folder)
        elif _is_gone(folder):
            with suppress(OSError):  # the home is not writable
                entry.unlink(missing_ok=True)
    return found


def secrets_of(folder: Path) -> list[str]:
    """Returns the names recorded for a run; empty for a run of another machine or user."""
    try:
        return read_object(state_folder() / "runs" / _file_name(folder)).get("secrets", [])
    except NoStateFolderError:
        return []


def is_run(folder: Path) -> bool:
    """Returns whether a folder is a run's, and can be read.

    A run that is being created has a hidden name.
    """
    try:
        return not folder.name.startswith(".") and (folder / "job.yaml").is_file()
    except OSError:
        return False


def _is_gone(folder: Path) -> bool:
    try:
        (folder / "job.yaml").stat()
    except OSError as error:
        return error.errno in GONE
    return folder.name.startswith(".")


def _file_name(folder: Path) -> str:
    return f"{hashlib.sha256(str(folder).encode()).hexdigest()[:16]}.json"
