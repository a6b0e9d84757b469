"""Finds the newest whole checkpoint and reads it straight into the shardings of this run's mesh."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from etils import epath

from trainer.checkpoint import host_memory
from trainer.checkpoint.damage import forget_cached, judged
from trainer.checkpoint.errors import NoGoodCheckpointError, RestoreError
from trainer.checkpoint.tree import digests, flatten, unflatten
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import OwnModel
from trainer.contract.planning.plan import World
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.checkpoint_metadata import BrokenError, CheckpointMetadata
from trainer.contract.records.compatibility import PARAMS, compare, other_parameters
from trainer.contract.storage.retries import StorageError, log_retry, pause, retried
from trainer.distributed import consensus
from trainer.step.train_step import TrainState
from trainer.telemetry.metrics import Report

TRIES = 10
"""Tries to read all arrays while the storage has trouble: about a minute of pauses."""
CONFIRM_S = 4.0
"""Before what looks damaged is read again: a client of NFS believes its cache for 3 s or so."""
KINDS = (StorageError, RestoreError)
PARTS = 8
"""A restore holds about one part in this many of its shards twice."""


@dataclass(frozen=True)
class Restored:
    state: TrainState[jax.Array]
    about: CheckpointMetadata
    notes: list[str]
    """What the job changed since the save."""


class NewestStep(NamedTuple):
    """What process 0 sees of the newest step."""

    about: str | None
    """A whole checkpoint's about.json; None: there is no step, or it is damaged."""
    step: int
    problem: str
    bad: list[str]


class Restorer:
    """Reads checkpoints of a folder; every process must call it, and all get the same."""

    def __init__(self, folder: epath.Path, job: Job, corpus_sha256: str, report: Report) -> None:
        self._folder, self._report = folder, report
        self._job, self._corpus_sha256 = job, corpus_sha256
        self._limit_s = job.deadlines.restore_s
        self._bad: list[str] = []
        self._meetings = 0

    def newest(self, like: TrainState[Any], shardings: TrainState[Any]) -> Restored | None:
        """The newest checkpoint that is whole, on this mesh; None where there never was one.

        `like` has the shapes of the state. A damaged checkpoint is moved aside, with a warning, and
        the one before it is taken. Raises NoGoodCheckpointError where none is good, ConfigError
        where the job is not the one that was saved.
        """
        while (about := self._choose()) is not None:
            continuity = compare(about, self._job, self._corpus_sha256)
            errors = continuity.errors or self._other_parameters(about, like)
            if errors:
                raise ConfigError(errors)
            flat, problem = self._read_twice(about, flatten(like), flatten(shardings))
            if not problem:
                return Restored(unflatten(like, flat), about, continuity.notes)
            self._move_aside(about.step, problem)
        if self._bad:
            raise NoGoodCheckpointError(
                f"no checkpoint in {self._folder} is whole: {'; '.join(self._bad)}. "
                "Nothing was deleted. Where the storage is well again, "
                f"`launch checkpoints restore-damaged {self._job.name}` puts back what is whole. "
                "Otherwise start a new run: another name, or --fresh"
            )
        return None

    def _other_parameters(self, about: CheckpointMetadata, like: TrainState[Any]) -> list[str]:
        if not isinstance(self._job.model, OwnModel):
            return []
        return other_parameters(about, {n: one.shape for n, one in like.params.items()}, PARAMS)

    def _choose(self) -> CheckpointMetadata | None:
        """The newest step whose files are all there, as process 0 sees it, on all processes."""
        while True:
            name, found, error = self._name("step"), NewestStep(None, 0, "", []), None
            if jax.process_index() == 0:
                try:
                    found = retried(str(self._folder), self._look)
                except Exception as problem:
                    error = judged(str(self._folder), problem)
            consensus.agree(f"{name}/seen", error, KINDS, self._limit_s)
            text = consensus.tell(name, json.dumps(found), self._limit_s)
            found = NewestStep(*json.loads(text))
            self._bad = found.bad
            if not found.problem:
                return CheckpointMetadata.model_validate_json(found.about) if found.about else None
            self._confirm(found.step, found.problem)
            self._move_aside(found.step, found.problem)

    def _look(self) -> "NewestStep":
        """Process 0's view of the newest step."""
        for step in checkpoint_metadata.steps(self._folder):
            try:
                about = checkpoint_metadata.read(self._folder / str(step))
            except BrokenError as error:
                return NewestStep(None, step, str(error), self._bad)
            return NewestStep(
                about.model_copy(update={"files": {}}).model_dump_json(), step, "", self._bad
            )
        return NewestStep(None, 0, "", self._bad or self._earlier())

    def _earlier(self) -> list[str]:
        """Checkpoints that were found damaged before: a run that had some never starts from 0."""
        if not self._folder.exists():
            return []
        names = sorted(
            p.name for p in self._folder.iterdir() if checkpoint_metadata.DAMAGED in p.name
        )
        return [f"{name} was moved aside before" for name in names]

    def _confirm(self, step: int, problem: str) -> None:
        """Reads once more what process 0 found damaged, there and on the last process.

        Raises RestoreError, on all processes alike, where one of them sees a whole checkpoint.
        """
        error = None
        if jax.process_index() in (0, jax.process_count() - 1):
            time.sleep(CONFIRM_S)
            error = self._second_look(step, problem)
        consensus.agree(self._name("confirm"), error, KINDS, self._limit_s)

    def _second_look(self, step: int, problem: str) -> Exception | None:
        source = self._folder / str(step)
        try:
            retried(str(source), lambda: checkpoint_metadata.read(source))
        except BrokenError:
            return None
        except Exception as error:
            return judged(str(source), error)
        return RestoreError(
            f"checkpoint of step {step} was incomplete for process 0 ({problem}), and a second "
            "look finds it whole. It is left as it is"
        )

    def _read_twice(
        self, about: CheckpointMetadata, like: Mapping[str, Any], shardings: Mapping[str, Any]
    ) -> tuple[dict[str, jax.Array], str]:
        """The arrays, and the damage that two reads find ("": none), the same on all processes."""
        flat, problem = self._read(about, like, shardings)
        if problem:
            self._report.warn(
                f"checkpoint of step {about.step}: {problem}. It is read again before it is judged"
            )
            flat.clear()
            flat, problem = self._read(about, like, shardings, is_second=True)
        return flat, problem

    def _read(
        self,
        about: CheckpointMetadata,
        like: Mapping[str, Any],
        shardings: Mapping[str, Any],
        *,
        is_second: bool = False,
    ) -> tuple[dict[str, jax.Array], str]:
        """One read, with its damage. Trouble that can pass is retried by all processes together.

        Raises StorageError and RestoreError, on all processes alike.
        """
        source, tries = self._folder / str(about.step), 0
        while True:
            flat, error = {}, None
            try:
                if is_second:
                    forget_cached(source)
                flat = read_arrays(source, about, like, shardings)
            except Exception as problem:
                error = judged(str(source), problem)
            name, is_damage = self._name("read"), isinstance(error, BrokenError)
            try:
                consensus.agree(
                    f"{name}/trouble", None if is_damage else error, KINDS, self._limit_s
                )
                consensus.agree(f"{name}/damage", error, (BrokenError,), self._limit_s)
                return flat, changed(flat, about)
            except BrokenError as problem:
                return {}, str(problem)
            except StorageError as problem:
                tries += 1
                if tries == TRIES:
                    raise
                pause_s = pause(tries)
                log_retry(str(source), problem, pause_s)
            time.sleep(pause_s)

    def _move_aside(self, step: int, problem: str) -> None:
        """Never deleted: the user may want to look at it. Process 0 renames it."""
        said = f"checkpoint of step {step} is damaged: {problem}"
        self._bad = [*self._bad, said]
        error = None
        if jax.process_index() == 0:
            try:
                self._rename(self._folder / str(step), problem, said)
            except Exception as trouble:
                error = judged(str(self._folder / str(step)), trouble)
        consensus.agree(self._name("aside"), error, KINDS, self._limit_s)

    def _rename(self, source: epath.Path, problem: str, said: str) -> None:
        number, target = 1, source.with_name(f"{source.name}{checkpoint_metadata.DAMAGED}")
        while target.exists():
            number += 1
            target = source.with_name(f"{source.name}{checkpoint_metadata.DAMAGED}.{number}")
        source.rename(target)
        (target / checkpoint_metadata.PROBLEM).write_text(problem)
        self._report.warn(f"{said}. It was moved to {target.name}; the one before it is used")

    def _name(self, what: str) -> str:
        """One that was not used before: the same on all processes."""
        self._meetings += 1
        return f"restore/{self._meetings}/{what}"


def read_arrays(
    source: epath.Path,
    about: CheckpointMetadata,
    like: Mapping[str, Any],
    shardings: Mapping[str, Any],
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
    with host_memory.given_back():
        for names in groups(like, shardings):
            some, how = {n: like[n] for n in names}, {n: arguments[n] for n in names}
            wanted: Any = ocp.args.PyTreeRestore(some, how, partial_restore=True)  # type: ignore[call-arg]
            flat |= jax.block_until_ready(handler.restore(source / about.data, args=wanted))
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


def changed(flat: Mapping[str, jax.Array], about: CheckpointMetadata) -> str:
    """Arrays whose digest is not the saved one, in words; "": none."""
    numbers = digests(flat.values())
    wrong = [
        name
        for name, number in zip(flat, numbers, strict=True)
        if number != about.arrays[name].digest
    ]
    return f"the data of {', '.join(wrong)} has changed since it was saved" if wrong else ""


def moved(about: CheckpointMetadata, world: World, mesh: Mapping[str, int]) -> str:
    """ "restored step 400, saved on 4 hosts x 4 devices (fsdp 16), now on 2 x 4 (fsdp 8)"."""
    saved, now = about.world, world
    before = f"{saved.processes} hosts x {saved.devices_per_host} devices ({_axes(about.mesh)})"
    text = f"restored step {about.step}, saved on {before}"
    if (saved, about.mesh) == (now, mesh):
        return text
    return f"{text}, now on {now.processes} x {now.devices_per_host} ({_axes(mesh)})"


def _axes(mesh: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1) or "one device"
