"""Finds the newest whole checkpoint and reads it straight into the shardings of this run's mesh."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import orbax.checkpoint as ocp
from etils import epath

from trainer.checkpoint import host_memory, layer_dims
from trainer.checkpoint.damage import forget_cached, judged, move_aside
from trainer.checkpoint.digests import changed
from trainer.checkpoint.errors import NoGoodCheckpointError, RestoreError
from trainer.checkpoint.memory_restore import MemoryRestorer
from trainer.checkpoint.tree import flatten, groups, unflatten
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import CustomModel
from trainer.contract.planning.plan import World
from trainer.contract.protocol.events import RestoreSource
from trainer.contract.protocol.host_memory import Stamp
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.checkpoint_metadata import (
    BrokenError,
    CheckpointMetadata,
    FormatError,
)
from trainer.contract.records.compatibility import PARAMS, compare, other_parameters
from trainer.contract.storage.retries import StorageError, log_retry, pause, retried
from trainer.distributed import consensus
from trainer.step.train_state import TrainState
from trainer.telemetry.metrics import Report

TRIES = 10
"""Tries to read all arrays while storage fails transiently: about a minute of pauses."""
CONFIRM_S = 4.0
"""Seconds before a second read confirms damage: NFS clients trust their cache for about 3 s."""
KINDS = (StorageError, RestoreError, FormatError)


@dataclass(frozen=True)
class Restored:
    state: TrainState[jax.Array]
    about: CheckpointMetadata
    notes: list[str]
    """Changes in the job since the save."""
    source: RestoreSource = "storage"
    stored_step: int | None = None
    """Step of the newest checkpoint in storage when this one is from memory, if there is one."""
    stamp: Stamp | None = None
    """Set for a checkpoint from memory."""


class NewestStep(NamedTuple):
    """Process 0's view of the newest step."""

    about: str | None
    """about.json of a whole checkpoint; None when no step exists or it is damaged."""
    step: int
    problem: str
    bad: list[str]


class Restorer:
    """Reads checkpoints of a folder; every process must call it, and all get the same result."""

    def __init__(
        self,
        folder: epath.Path,
        job: Job,
        corpus_sha256: str,
        report: Report,
        memory: MemoryRestorer | None = None,
    ) -> None:
        """`memory` reads in-memory checkpoints, if the run may have some."""
        self._folder, self._report, self._memory = folder, report, memory
        self._job, self._corpus_sha256 = job, corpus_sha256
        self._limit_s = job.deadlines.restore_s
        self._bad: list[str] = []
        self._meetings = 0

    def newest(self, like: TrainState[Any], shardings: TrainState[Any]) -> Restored | None:
        """Returns the newest whole checkpoint on this mesh, or None when there never was one.

        One in the memory of the hosts is read unless storage has a newer one.
        `like` has the shapes of the state. A damaged checkpoint is moved aside with a warning, and
        the one before it is used. Raises NoGoodCheckpointError when none is good, ConfigError when
        the job is incompatible with the checkpoint, FormatError when another version wrote it.
        """
        about = self._choose()
        if in_memory := self._newest_in_memory(about.step if about else None, like, shardings):
            return in_memory
        while about is not None:
            continuity = compare(about, self._job, self._corpus_sha256)
            errors = continuity.errors or self._other_parameters(about, like)
            if errors:
                raise ConfigError(errors)
            flat, problem = self._read_twice(about, flatten(like), flatten(shardings))
            if not problem:
                return Restored(unflatten(like, flat), about, continuity.notes)
            self._move_aside(about.step, problem)
            about = self._choose()
        if self._bad:
            raise NoGoodCheckpointError(
                f"no checkpoint in {self._folder} is whole: {'; '.join(self._bad)}. "
                "Nothing was deleted. Once the storage works again, "
                f"`launch checkpoints restore-damaged {self._job.name}` puts back what is whole. "
                "Otherwise start a new run with another name, or with --fresh"
            )
        return None

    def _newest_in_memory(
        self, stored_step: int | None, like: TrainState[Any], shardings: TrainState[Any]
    ) -> Restored | None:
        """Returns the newest intact checkpoint in the memory of the hosts.

        Returns None when there is none, or storage has a newer one.
        """
        for found in self._memory.find() if self._memory else []:
            about = found.metadata
            continuity = compare(about, self._job, self._corpus_sha256)
            is_other = continuity.errors or _differs(about, flatten(like))
            if is_other or about.step < (stored_step or 0):
                continue
            assert self._memory
            read = self._memory.read(found, flatten(like), flatten(shardings))
            if read:
                return Restored(
                    unflatten(like, read.flat),
                    about,
                    continuity.notes,
                    read.source,
                    stored_step,
                    found.stamp,
                )
        return None

    def _other_parameters(self, about: CheckpointMetadata, like: TrainState[Any]) -> list[str]:
        if not isinstance(self._job.model, CustomModel):
            return []
        return other_parameters(about, {n: one.shape for n, one in like.params.items()}, PARAMS)

    def _choose(self) -> CheckpointMetadata | None:
        """Returns the newest step with all its files, as process 0 sees it, on all processes."""
        while True:
            name, found, error = self._name("step"), NewestStep(None, 0, "", []), None
            if jax.process_index() == 0:
                try:
                    found = retried(str(self._folder), self._find_newest)
                except Exception as problem:
                    error = judged(str(self._folder), problem)
            consensus.agree(f"{name}/seen", error, KINDS, self._limit_s)
            text = consensus.broadcast(name, json.dumps(found), self._limit_s)
            found = NewestStep(*json.loads(text))
            self._bad = found.bad
            if not found.problem:
                return CheckpointMetadata.model_validate_json(found.about) if found.about else None
            self._confirm(found.step, found.problem)
            self._move_aside(found.step, found.problem)

    def _find_newest(self) -> "NewestStep":
        """Returns process 0's view of the newest step."""
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
        """Returns earlier damaged checkpoints: a run that had checkpoints never starts from 0."""
        if not self._folder.exists():
            return []
        names = sorted(
            p.name for p in self._folder.iterdir() if checkpoint_metadata.DAMAGED in p.name
        )
        return [f"{name} was moved aside earlier" for name in names]

    def _confirm(self, step: int, problem: str) -> None:
        """Repeats the read of a step that process 0 found damaged, there and on the last process.

        Raises RestoreError, on all processes alike, when one of them sees a whole checkpoint.
        """
        error = None
        if jax.process_index() in (0, jax.process_count() - 1):
            time.sleep(CONFIRM_S)
            error = self._verify_again(step, problem)
        consensus.agree(self._name("confirm"), error, KINDS, self._limit_s)

    def _verify_again(self, step: int, problem: str) -> Exception | None:
        source = self._folder / str(step)
        try:
            retried(str(source), lambda: checkpoint_metadata.read(source))
        except BrokenError:
            return None
        except Exception as error:
            return judged(str(source), error)
        return RestoreError(
            f"checkpoint of step {step} was incomplete for process 0 ({problem}), but a second "
            "read finds it whole. It was not moved"
        )

    def _read_twice(
        self, about: CheckpointMetadata, like: Mapping[str, Any], shardings: Mapping[str, Any]
    ) -> tuple[dict[str, jax.Array], str]:
        """Returns the arrays and the damage after two reads ("": none), alike on all processes."""
        flat, problem = self._read(about, like, shardings)
        if problem:
            self._report.warn(
                f"checkpoint of step {about.step}: {problem}. Reading it again before moving it"
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
        """Reads the arrays once and returns them with the damage found ("": none).

        All processes retry transient errors together. Raises StorageError and RestoreError, on all
        processes alike.
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
        """Renames a damaged step, on process 0. It is never deleted: the user may inspect it."""
        message = f"checkpoint of step {step} is damaged: {problem}"
        self._bad = [*self._bad, message]
        error = None
        if jax.process_index() == 0:
            try:
                self._rename(self._folder / str(step), problem, message)
            except Exception as trouble:
                error = judged(str(self._folder / str(step)), trouble)
        consensus.agree(self._name("aside"), error, KINDS, self._limit_s)

    def _rename(self, source: epath.Path, problem: str, message: str) -> None:
        target = move_aside(source, checkpoint_metadata.DAMAGED, problem)
        self._report.warn(f"{message}. Moved it to {target.name}; using the one before it")

    def _name(self, what: str) -> str:
        """Returns a new name for an agreement, the same on all processes."""
        self._meetings += 1
        return f"restore/{self._meetings}/{what}"


def _differs(about: CheckpointMetadata, like: Mapping[str, Any]) -> bool:
    """Returns whether a checkpoint lacks leaves, or has their layers in other dims."""
    return any(
        name not in about.arrays or layer_dims.differ(about.arrays[name].shape, leaf.shape)
        for name, leaf in like.items()
    )


def restore_step(
    source: epath.Path,
    job: Job,
    corpus_sha256: str,
    like: TrainState[Any],
    shardings: TrainState[Any],
) -> tuple[TrainState[jax.Array], CheckpointMetadata]:
    """Reads one step folder of any run, and changes nothing in it.

    Raises ConfigError when the job is incompatible with it; BrokenError, FormatError and what Orbax
    raises when it cannot be read.
    """
    about = checkpoint_metadata.read(source)
    if errors := compare(about, job, corpus_sha256).errors:
        raise ConfigError(errors)
    flat = read_arrays(source, about, flatten(like), flatten(shardings))
    if problem := changed(flat, about):
        raise BrokenError(f"{source}: {problem}")
    return unflatten(like, flat), about


def read_arrays(
    source: epath.Path,
    about: CheckpointMetadata,
    like: Mapping[str, Any],
    shardings: Mapping[str, Any],
) -> dict[str, jax.Array]:
    """Reads every leaf of `like` in its sharding; each process reads what its devices hold.

    The layers may be in other dims than they were saved in. Raises BrokenError when a leaf was not
    saved or its dtype would be cast, and what Orbax raises.
    """
    if absent := sorted(set(like) - set(about.arrays)):
        raise BrokenError(f"{', '.join(absent)} is missing")
    for name, leaf in like.items():
        if str(leaf.dtype) != about.arrays[name].dtype:
            raise BrokenError(f"{name} is {about.arrays[name].dtype}, expected {leaf.dtype}")
    read = {
        name: layer_dims.as_saved(about.arrays[name].shape, leaf, shardings[name])
        for name, leaf in like.items()
    }
    arguments = {
        # Not strict: the rows that pad a vocabulary are zeros, and their number may differ.
        name: ocp.ArrayRestoreArgs(
            sharding=sharding, global_shape=leaf.shape, dtype=leaf.dtype, strict=False
        )
        for name, (leaf, sharding) in read.items()
    }
    shapes, placed = ({name: one[at] for name, one in read.items()} for at in (0, 1))
    handler, flat = ocp.PyTreeCheckpointHandler(), {}
    with host_memory.released():
        for names in groups(shapes, placed):
            some, how = {n: shapes[n] for n in names}, {n: arguments[n] for n in names}
            wanted: Any = ocp.args.PyTreeRestore(some, how, partial_restore=True)  # type: ignore[call-arg]
            found = jax.block_until_ready(handler.restore(source / about.data, args=wanted))
            for name in names:
                flat[name] = layer_dims.as_wanted(found.pop(name), like[name], shardings[name])
    return {name: flat[name] for name in like}


def moved(about: CheckpointMetadata, world: World, mesh: Mapping[str, int]) -> str:
    """Returns a line that describes the restore:

    "restored step 400, saved on 4 hosts x 4 devices (fsdp 16), now on 2 x 4 (fsdp 8)".
    """
    saved, now = about.world, world
    before = f"{saved.hosts} hosts x {saved.devices_per_host} devices ({_axes(about.mesh)})"
    text = f"restored step {about.step}, saved on {before}"
    if (saved, about.mesh) == (now, mesh):
        return text
    return f"{text}, now on {now.hosts} x {now.devices_per_host} ({_axes(mesh)})"


def _axes(mesh: Mapping[str, int]) -> str:
    return ", ".join(f"{axis} {size}" for axis, size in mesh.items() if size > 1) or "one device"
