"""Finds the checkpoint that a reference or a command line names. Does not import JAX."""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from launcher.core.errors import UsageError
from launcher.runs.checkpoints import Entry, entries
from launcher.runs.folder import RunFolderError, find_run
from launcher.runs.status import read_status
from trainer.contract.config.checkpoint_ref import BEST, CheckpointRef, parse_checkpoint_ref
from trainer.contract.config.command import CommandJob, load_job
from trainer.contract.records.checkpoint_metadata import folder_of
from trainer.contract.storage.paths import is_url

Which = int | Literal["best"] | None
"""A step, `best` for the lowest evaluation loss, or None for the newest whole checkpoint."""


def find_folder(name_or_path: str, runs: Path) -> str:
    """Returns the checkpoint folder of a run, or the given path or URL itself.

    Raises RunFolderError when neither exists or the run's checkpoints are not Slipway's, and
    ConfigError when the run's job cannot be read.
    """
    if is_url(name_or_path):
        return name_or_path
    try:
        run_dir = find_run(name_or_path, runs)
    except RunFolderError:
        if name_or_path and _is_folder(name_or_path):
            return name_or_path
        raise
    job = load_job(run_dir / "job.yaml").value
    if isinstance(job, CommandJob):
        raise RunFolderError(f"{run_dir}: its job is a command: what it saves is its own business")
    return folder_of(job, run_dir)


def pick(found: Sequence[Entry], folder: str, which: Which) -> Entry:
    """Returns the whole checkpoint of a step, the best one or the newest one.

    `found` has the newest first. Of equally good ones the newest is the best. Raises
    RunFolderError.
    """
    whole = [entry for entry in found if not entry.problem]
    if which == BEST:
        return _best(whole, folder)
    for entry in whole:
        if which in (None, entry.step):
            return entry
    wanted = "checkpoint" if which is None else f"whole checkpoint of step {which}"
    why = next((f" ({e.problem})" for e in found if e.step == which), "")
    raise RunFolderError(f"{folder}: no {wanted}{why}. Whole ones: {_steps(whole)}")


def named(text: str) -> CheckpointRef:
    """Returns the reference that an argument of a command is: `run:NAME@best`, or just NAME.

    Raises UsageError.
    """
    try:
        return parse_checkpoint_ref(text) or CheckpointRef(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def choose(ref: CheckpointRef, step: int | None, runs: Path) -> Entry:
    """Returns the checkpoint that the arguments of a command name. Raises RunFolderError.

    `step`: its option --step.
    """
    if ref.at is not None and step is not None:
        raise UsageError(f"{ref} and --step {step} both choose a checkpoint. Remove one of them")
    folder = find_folder(ref.run, runs)
    return pick(list(entries(folder)), folder, ref.at if step is None else step)


def find_source(ref: CheckpointRef, runs: Path) -> Entry:
    """Returns the checkpoint that weights are read from.

    Raises RunFolderError for an unknown run, for a step that does not exist and for adapters;
    UnreachableError for storage that cannot be read from here.
    """
    try:
        entry = choose(ref, None, runs)
    except RunFolderError as error:
        raise RunFolderError(f"{ref}: {error}{_not_yet(ref, runs)}") from None
    if entry.about and entry.about.base:
        raise RunFolderError(
            f"{ref}: {entry.folder} contains only adapters. Export it (launch checkpoints export "
            f"{ref} --to DIR), and start from DIR"
        )
    return entry


def _is_folder(path: str) -> bool:
    try:
        return Path(path).is_dir()
    except OSError:  # longer than a path can be
        return False


def _best(whole: Sequence[Entry], folder: str) -> Entry:
    rated = [
        (entry.about.eval_loss, -entry.step, entry)
        for entry in whole
        if entry.about and entry.about.eval_loss is not None
    ]
    if not rated:
        raise RunFolderError(
            f"{folder}: no checkpoint has an evaluation loss, so none is the best. Save a step "
            f"that is also evaluated (eval.every_steps), or name one: {_steps(whole)}"
        )
    return min(rated)[-1]


def _steps(whole: Sequence[Entry]) -> str:
    return ", ".join(str(entry.step) for entry in whole) or "none"


def _not_yet(ref: CheckpointRef, runs: Path) -> str:
    """Returns a hint when the run is still running, else ""."""
    try:
        is_alive = read_status(find_run(ref.run, runs)).is_alive
    except RunFolderError:
        return ""
    return f". The run is still running: wait for its end with `after: [{ref.run}]`" * is_alive
