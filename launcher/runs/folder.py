"""The folder of a run as commands see it: its name, whether it is alive, what to type for it."""

import shlex
from pathlib import Path

from launcher.core.errors import UsageError
from launcher.core.files import NoLocksError, is_locked
from launcher.runs import registry
from launcher.runs.slurm_job import queued
from launcher.runs.state_file import RecordedState
from trainer.contract.config.errors import suggest

REMOTE = "remote.json"
"""File with the location of a remote run, in the folder for its local copy."""


class RunFolderError(UsageError):
    """The run's folder cannot be used as requested; the message gives the reason and a remedy."""


def find_run(name_or_path: str, runs: Path) -> Path:
    """Returns the folder of a run: by its name in `runs`, by its path, or by its registered name.

    Raises RunFolderError for an unknown name, and for a name that several registered runs have.
    """
    if not name_or_path:
        raise RunFolderError("expected a run's name or the path of its folder, found an empty text")
    for folder in (runs / name_or_path, Path(name_or_path)):
        if registry.is_run(folder):
            return folder.absolute()
    elsewhere = registry.registered()
    found = [folder for folder in elsewhere if folder.name == name_or_path]
    if len(found) == 1:
        return found[0]
    if found:
        lines = "".join(f"\n  {folder}" for folder in found)
        raise RunFolderError(f"{name_or_path}: several runs have this name. Say which:{lines}")
    known = {path.parent.name for path in runs.glob("*/job.yaml")} | {f.name for f in elsewhere}
    hint = suggest(name_or_path, sorted(known)).removesuffix(".")
    raise RunFolderError(
        f"{name_or_path}: no run of this name in {runs} or elsewhere, and no run's folder by this "
        f"path.{hint}"
    )


def launched_in(run: Path) -> Path:
    """Returns the folder that a run's relative paths start from, or "." when it is gone.

    Raises RunRecordError when state.json has a wrong field.
    """
    folder = Path(RecordedState.read(run).launched_in or ".")
    return folder if folder.is_dir() else Path()


def is_alive(folder: Path) -> bool:
    """Returns whether a process runs this run. Raises RunFolderError when that is unknown."""
    try:
        return is_locked(folder / "events.jsonl")
    except NoLocksError as error:
        raise no_locks(folder, error) from None


def run_word(folder: Path) -> str:
    """Returns a run's name for a command line, or its path when it is not in `runs`."""
    if folder.parent == Path("runs").absolute():
        return shlex.quote(folder.name)
    return shlex.quote(str(folder))


def resume_command(folder: Path) -> str:
    """Returns the command that resumes a run."""
    return f"launch resume {run_word(folder)}"


def stop_command(folder: Path) -> str:
    """Returns the command that stops a run and deletes its remaining resources."""
    return f"launch stop {run_word(folder)}"


def refuse_queued(folder: Path) -> None:
    """Raises RunFolderError when the run is a job in Slurm's queue."""
    if found := queued(folder):
        raise RunFolderError(
            f"{folder}: this run is a job of Slurm's: {found}. Follow it (launch attach "
            f"{run_word(folder)}), or end it (launch stop {run_word(folder)})"
        )


def no_locks(folder: Path, error: NoLocksError) -> RunFolderError:
    return RunFolderError(
        f"{folder}: its file system has no locks (flock: {error.strerror}), so that two processes "
        "could run one run. Name a folder on another one with --runs DIR, or mount this one with "
        "locks (Lustre: -o flock)"
    )
