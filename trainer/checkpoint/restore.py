"""Finds the newest whole checkpoint and reads it straight into the shardings of this run's mesh."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import orbax.checkpoint as ocp
from etils import epath

from trainer import agreement
from trainer.checkpoint import memory
from trainer.checkpoint.digest import digests
from trainer.checkpoint.errors import NoGoodCheckpointError
from trainer.checkpoint.leaves import flatten, unflatten
from trainer.report import Report
from trainer.spec import checkpoints
from trainer.spec.checkpoints import About, BrokenError
from trainer.spec.config import ConfigError
from trainer.spec.continuity import PARAMS, compare, other_parameters
from trainer.spec.job import Job
from trainer.spec.model import OwnModel
from trainer.spec.plan import World
from trainer.train_step import State

LOOK_TIMEOUT_S = 600.0
READ_TIMEOUT_S = 3600.0
PROBLEM = "problem.txt"
PARTS = 8
"""A restore holds about one part in this many of its shards twice."""


@dataclass(frozen=True)
class Restored:
    state: State[jax.Array]
    about: About
    notes: list[str]
    """What the job changed since the save."""


class Restorer:
    """Reads checkpoints of a folder; every process must call it, and all get the same."""

    def __init__(self, folder: epath.Path, job: Job, corpus_sha256: str, report: Report) -> None:
        self._folder, self._report = folder, report
        self._job, self._corpus_sha256 = job, corpus_sha256
        self._bad: list[str] = []

    def newest(self, like: State[Any], shardings: State[Any]) -> Restored | None:
        """The newest checkpoint that is whole, on this mesh; None where there never was one.

        `like` has the shapes of the state. A damaged checkpoint is moved aside, with a warning, and
        the one before it is taken. Raises NoGoodCheckpointError where none is good, ConfigError
        where the job is not the one that was saved.
        """
        number = 0
        while (about := self._choose(number)) is not None:
            continuity = compare(about, self._job, self._corpus_sha256)
            errors = continuity.errors or self._other_parameters(about, like)
            if errors:
                raise ConfigError(errors)
            source = self._folder / str(about.step)
            flat, problem = self._read(source, about, flatten(like), flatten(shardings), number)
            if not problem:
                return Restored(unflatten(like, flat), about, continuity.notes)
            self._move_aside(source, problem)
            number += 1
        if self._bad:
            raise NoGoodCheckpointError(
                f"no checkpoint in {self._folder} is whole: {'; '.join(self._bad)}. "
                "Nothing was deleted; start anew with another name or --fresh"
            )
        return None

    def _other_parameters(self, about: About, like: State[Any]) -> list[str]:
        if not isinstance(self._job.model, OwnModel):
            return []
        return other_parameters(about, {n: one.shape for n, one in like.params.items()}, PARAMS)

    def _choose(self, number: int) -> About | None:
        """Process 0 looks for the newest step whose files are all there, and tells the others."""
        choice = None
        if jax.process_index() == 0:
            about = self._newest_whole()
            text = about and about.model_copy(update={"files": {}}).model_dump_json()
            choice = json.dumps({"about": text, "bad": self._bad})
        told = json.loads(agreement.tell(f"restore/{number}/step", choice, LOOK_TIMEOUT_S))
        self._bad = told["bad"]
        return About.model_validate_json(told["about"]) if told["about"] else None

    def _newest_whole(self) -> About | None:
        for step in checkpoints.steps(self._folder):
            try:
                return checkpoints.read(self._folder / str(step))
            except BrokenError as error:
                self._move_aside(self._folder / str(step), str(error))
        self._note_earlier()
        return None

    def _note_earlier(self) -> None:
        """Checkpoints that were found damaged before: a run that had some never starts from 0."""
        if self._bad or not self._folder.exists():
            return
        names = sorted(p.name for p in self._folder.iterdir() if checkpoints.DAMAGED in p.name)
        self._bad = [f"{name} was moved aside before" for name in names]

    def _read(
        self,
        source: epath.Path,
        about: About,
        like: Mapping[str, Any],
        shardings: Mapping[str, Any],
        number: int,
    ) -> tuple[dict[str, jax.Array], str]:
        """The arrays, and what is wrong with them ("": nothing), the same on every process."""
        flat, error = {}, None
        try:
            flat = read_arrays(source, about, like, shardings)
        except Exception as problem:  # tensorstore has many
            error = BrokenError(cause(problem))
        try:
            name = f"restore/{number}/read"
            agreement.agree(name, error, (BrokenError,), READ_TIMEOUT_S)
        except BrokenError as problem:
            return {}, str(problem)
        return flat, changed(flat, about)

    def _move_aside(self, source: epath.Path, problem: str) -> None:
        """Never deleted: somebody may want to look at it. On process 0."""
        said = f"checkpoint of step {source.name} is damaged: {problem}"
        self._bad.append(said)
        if jax.process_index() != 0:
            return
        number, target = 1, source.with_name(f"{source.name}{checkpoints.DAMAGED}")
        while target.exists():
            number, target = (
                number + 1,
                source.with_name(f"{source.name}{checkpoints.DAMAGED}.{number}"),
            )
        source.rename(target)
        (target / PROBLEM).write_text(problem)
        self._report.warn(f"{said}. It was moved to {target.name}; the one before it is used")


def read_arrays(
    source: epath.Path, about: About, like: Mapping[str, Any], shardings: Mapping[str, Any]
) -> dict[str, jax.Array]:
    """Every leaf of `like` in its sharding, each process reading what its devices hold.

    Raises BrokenError where one was not saved or its dtype would be cast, and what Orbax raises.
    """
    if absent := sorted(set(like) - set(about.arrays)):
        raise BrokenError(f"it does not have {', '.join(absent)}")
    for name, leaf in like.items():
        if str(leaf.dtype) != about.arrays[name].dtype:
            raise BrokenError(f"{name} is {about.arrays[name].dtype}, wanted {leaf.dtype}")
    arguments = {
        # Not strict: the rows that pad a vocabulary are zeros, and their number may differ.
        name: ocp.ArrayRestoreArgs(
            sharding=shardings[name], global_shape=leaf.shape, dtype=leaf.dtype, strict=False
        )
        for name, leaf in like.items()
    }
    handler, flat = ocp.PyTreeCheckpointHandler(), {}
    with memory.given_back():
        for names in groups(like, shardings):
            some, how = {n: like[n] for n in names}, {n: arguments[n] for n in names}
            wanted: Any = ocp.args.PyTreeRestore(some, how, partial_restore=True)  # type: ignore[call-arg]
            flat |= jax.block_until_ready(handler.restore(source, args=wanted))
    return {name: flat[name] for name in like}


def groups(
    like: Mapping[str, Any], shardings: Mapping[str, Any], parts: int = PARTS
) -> Iterator[list[str]]:
    """Names of arrays to read together: each is in memory twice while its group is read.

    A group is no more than one part of all shards, or one array.
    """
    sizes = {
        name: math.prod(shardings[name].shard_shape(leaf.shape)) * leaf.dtype.itemsize
        for name, leaf in like.items()
    }
    room = sum(sizes.values()) / parts
    group: list[str] = []
    for name in sorted(like, key=lambda name: -sizes[name]):
        if group and sum(sizes[n] for n in group) + sizes[name] > room:
            yield group
            group = []
        group.append(name)
    if group:
        yield group


def changed(flat: Mapping[str, jax.Array], about: About) -> str:
    """Arrays whose digest is not the saved one, in words; "": none."""
    numbers = digests(flat.values())
    wrong = [
        name
        for name, number in zip(flat, numbers, strict=True)
        if number != about.arrays[name].digest
    ]
    return f"the data of {', '.join(wrong)} has changed since it was saved" if wrong else ""


def moved(about: About, world: World, mesh: Mapping[str, int]) -> str:
    """ "restored step 400, saved on 4 hosts x 4 devices (fsdp 16), now on 2 x 4 (fsdp 8)"."""
    saved, now = about.world, world
    before = f"{saved.processes} hosts x {saved.devices_per_host} devices ({_axes(about.mesh)})"
    text = f"restored step {about.step}, saved on {before}"
    if (saved, about.mesh) == (now, mesh):
        return text
    return f"{text}, now on {now.processes} x {now.devices_per_host} ({_axes(mesh)})"


def _axes(mesh: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1) or "one device"


def cause(error: BaseException) -> str:
    """The first line of what is at the bottom of a chain of errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
