"""Steps in a folder of checkpoints and their metadata, read without loading an array.

    CHECKPOINTS/400/           a committed step: Orbax's files, about.json, and tokenizer.json if
                               the run trained a tokenizer
    CHECKPOINTS/400.damaged/   a step that was found damaged and moved aside
    CHECKPOINTS/lease.json     the attempt and the run that may write to this folder

Folders are `pathlib.Path` or `etils.epath.Path`: `gs://...` works where a host can reach it. On an
object store, a step's arrays are in a subfolder that no other attempt or save writes to
(400/LABEL/). about.json is the step's last object: without it there is no checkpoint.
"""

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from trainer.contract.config.base import Section
from trainer.contract.config.checkpoint import Checkpoint as Policy
from trainer.contract.config.job import Job
from trainer.contract.planning.layer_stacks import LAYERS
from trainer.contract.planning.plan import World
from trainer.contract.records.exclusions import Exclusions
from trainer.contract.storage.paths import AnyPath, is_url

FORMAT = 1
"""Version of about.json, of the job's keys in it, and of the arrays' names. Only this one is read.
"""
ABOUT = "about.json"
TOKENIZER = "tokenizer.json"
"""Name of the trained tokenizer's file in a step folder."""
DAMAGED, PROBLEM = ".damaged", "problem.txt"
"""The suffix of a folder that was moved aside, and the file in it that states the reason."""
UNCHECKED = ".unchecked"
"""The suffix of a folder that was moved aside because a host may have computed it wrong."""


class Array(Section):
    """One leaf of the saved state."""

    shape: tuple[int, ...]
    dtype: str
    digest: int
    """Digest modulo 2^32, the same on every mesh: see trainer/checkpoint/digests.py."""


class Base(Section):
    """Weights that a run reads but does not save: the base model of adapters, or a teacher."""

    source: str
    """A step folder or a Hugging Face folder: an absolute path, or a URL."""
    step: int | None
    """Step of a step folder."""
    digests: dict[str, int]
    """Digest of each of its parameters in float32, to detect a different base."""


class CheckpointMetadata(Section):
    """Metadata of a checkpoint, stored in its about.json."""

    format: int = FORMAT
    step: int
    examples: int
    """Examples trained on, which is the number of the next one. The complete data position."""
    time: float
    """Start of the save, in seconds since the epoch."""
    run_id: str
    attempt: int
    loss: float
    eval_loss: float | None
    """Loss of an evaluation after exactly this step."""
    job: dict[str, Any]
    """The job with its defaults filled in."""
    corpus_sha256: str
    world: World
    mesh: dict[str, int]
    versions: dict[str, str]
    """Versions of Python and of the packages."""
    code: str
    """SHA-256 over all code that computed the job."""
    arrays: dict[str, Array]
    files: dict[str, int]
    """Path in the folder -> size in bytes."""
    data: str = ""
    """Subfolder of the step folder with the arrays; "" for the step folder itself."""
    base: Base | None = None
    """Base model of adapters; None when the weights are those of a whole model."""
    teacher: Base | None = None
    """Teacher of a distillation."""
    recent: tuple[tuple[int, float, float], ...] = ()
    """Step, loss and logarithm of the gradient norm of the last steps, to find spikes."""
    checked_step: int | None = None
    """Newest step whose state a later check of hosts had confirmed; None without checks."""
    excluded: Exclusions = ()
    """Examples that the run had excluded by then; `excluded.json` has the current ones."""

    @property
    def bytes(self) -> int:
        return sum(self.files.values())

    def shape(self, name: str) -> tuple[int, ...]:
        """Returns the shape of an array with its layers in one dim.

        A pipeline with several rounds has saved them in two.
        """
        shape, rounds = self.arrays[name].shape, self.job["mesh"].get("pipeline_rounds", 1)
        if rounds == 1 or LAYERS not in name.split("."):
            return shape
        return (shape[0] * shape[1], *shape[2:])


class _AnyFormat(BaseModel):
    """The key that every version of about.json has."""

    format: int = 0


class FormatError(ValueError):
    """Raised for a checkpoint that another version of Slipway wrote, in another format."""


class BrokenError(ValueError):
    """Raised for a step folder that is not a complete checkpoint, with the reason."""


@dataclass(frozen=True)
class Score:
    """The values that decide whether a checkpoint is kept."""

    step: int
    eval_loss: float | None


def folder_of(job: Job, run_dir: Path) -> str:
    """Returns the folder of a run's checkpoints: a URL, or a path (`~`: home of its opener)."""
    if job.storage is None:
        return str(run_dir / "checkpoints")
    return f"{job.storage.rstrip('/')}/{job.name}/checkpoints"


def steps(folder: AnyPath) -> list[int]:
    """Returns the committed steps, newest first. `read` checks whether they are complete."""
    try:
        names = [path.name for path in folder.iterdir() if is_committed(path)]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return sorted((int(name) for name in names), reverse=True)


def is_committed(path: AnyPath) -> bool:
    """Returns whether a path is a step folder whose save was completed."""
    # In a file system the name itself is the commit: a step without about.json is damaged.
    return path.name.isdecimal() and (not is_url(path) or (path / ABOUT).exists())


def sizes(folder: AnyPath) -> dict[str, int]:
    """Returns path inside the folder -> size in bytes, for every file in it."""
    if not is_url(folder):
        return dict(sorted(_sizes(str(folder), "")))
    import fsspec

    # Listing takes one request for a thousand objects; stat takes one request for each.
    store, root = fsspec.url_to_fs(str(folder))
    found = store.find(root, detail=True)
    return {name.removeprefix(f"{root}/"): info["size"] for name, info in sorted(found.items())}


def _sizes(root: str, below: str) -> Iterator[tuple[str, int]]:
    """Yields (path, size in bytes) of every file; rglob would take unreadable folders for empty."""
    with os.scandir(f"{root}/{below}") as entries:
        for entry in entries:
            name = f"{below}{entry.name}"
            if entry.is_dir():
                yield from _sizes(root, f"{name}/")
            else:
                yield name, entry.stat().st_size


def read(folder: AnyPath) -> CheckpointMetadata:
    """Reads a step folder's about.json and checks the size of every file.

    Raises BrokenError with the file and its problem, FormatError for another format.
    """
    about = read_about(folder)
    try:
        found = sizes(folder)
    except (FileNotFoundError, NotADirectoryError) as error:  # another process is deleting it
        raise BrokenError(f"{error.filename or folder} is missing") from None
    for name, size in about.files.items():
        if name not in found:
            raise BrokenError(f"{name} is missing")
        if found[name] != size:
            raise BrokenError(f"{name} has {found[name]:,} bytes, expected {size:,}")
    return about


def newest_step(path: AnyPath) -> AnyPath:
    """Returns the newest whole step folder of a run or of a folder of checkpoints.

    A `path` that is a step folder is returned as it is. Raises BrokenError when there is none.
    """
    if (path / ABOUT).exists():
        return path
    folder = path / "checkpoints" if (path / "checkpoints").exists() else path
    for step in steps(folder):
        try:
            read(folder / str(step))
            return folder / str(step)
        except BrokenError:
            continue
    raise BrokenError(f"{path} is neither a checkpoint nor a folder that contains one")


def read_about(folder: AnyPath) -> CheckpointMetadata:
    """Reads a step folder's about.json without checking its files.

    Raises BrokenError, or FormatError for another format.
    """
    try:
        text = (folder / ABOUT).read_text(encoding="utf-8")
        found = _AnyFormat.model_validate_json(text).format
        if found == FORMAT:
            return CheckpointMetadata.model_validate_json(text)
    except (FileNotFoundError, NotADirectoryError):
        raise BrokenError(f"{ABOUT} is missing") from None
    except ValueError as error:
        raise BrokenError(f"{ABOUT} cannot be read: {str(error).splitlines()[0]}") from None
    raise FormatError(
        f"{folder} has checkpoint format {found}, and this version of Slipway reads format "
        f"{FORMAT}. Resume it with the version that wrote it, or start a new run"
    )


def trained_tokenizer(folder: AnyPath) -> str:
    """Returns the text of the tokenizer.json trained for a step folder's run, or "" without one."""
    file = folder / read_about(folder).data / TOKENIZER
    return file.read_text(encoding="utf-8") if file.exists() else ""


def expired(
    scores: Iterable[Score], policy: Policy, checked_step: int | None = None
) -> list[int]:  # fmt: skip
    """Returns steps to delete: not among the newest, not every k-th, not among the best.

    The newest one up to `checked_step` is kept: the run goes back to it if a host computes wrong.
    """
    newest_first = sorted(scores, key=lambda score: score.step, reverse=True)
    kept = {score.step for score in newest_first[: policy.keep]}
    if checked_step is not None:
        kept |= {next((s.step for s in newest_first if s.step <= checked_step), 0)}
    if policy.keep_every_steps:
        kept |= {s.step for s in newest_first if s.step % policy.keep_every_steps == 0}
    rated = [(s.eval_loss, -s.step) for s in newest_first if s.eval_loss is not None]
    kept |= {-step for _, step in sorted(rated)[: policy.keep_best]}
    return [score.step for score in newest_first if score.step not in kept]
