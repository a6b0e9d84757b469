"""Reads weights without the rest of a state, for `init_from`, exports and checks."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np
from etils import epath
from jax.sharding import Sharding, SingleDeviceSharding

from trainer import hugging_face
from trainer.checkpoint import layer_dims
from trainer.checkpoint.digests import changed, digests
from trainer.checkpoint.errors import FolderError
from trainer.checkpoint.restore import read_arrays
from trainer.contract.config.checkpoint import Checkpoint
from trainer.contract.config.checkpoint_ref import parse_checkpoint_ref
from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import CustomModel
from trainer.contract.hugging_face.config import is_hugging_face
from trainer.contract.planning.parameter_shapes import parameters
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.checkpoint_metadata import (
    Base,
    BrokenError,
    CheckpointMetadata,
)
from trainer.contract.records.compatibility import (
    PARAMS,
    compare,
    of_its_tokenizer,
    other_parameters,
)
from trainer.contract.storage.paths import to_path
from trainer.contract.storage.retries import StorageError, is_transient
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.distributed import consensus
from trainer.step.train_step import TrainProgram

AVERAGE = "average."


class Initial(NamedTuple):
    """Weights that a run starts from, the base model of its adapters, or its teacher."""

    params: dict[str, jax.Array]
    base: Base
    """The source and the digests of the weights."""


def initial(source: str, program: TrainProgram, known: Base | None = None) -> Initial:
    """Reads parameters from a run, its checkpoints, one checkpoint, or a Hugging Face folder.

    They get the shardings of the job's parameters, or of the base model of its adapters. Raises
    FolderError when they are missing, damaged, of another model, or not the `known` ones. Raises
    StorageError when the storage fails transiently. Both are raised on all processes alike.
    """
    if parse_checkpoint_ref(source):
        raise FolderError(
            f"checkpoint.init_from: `launch` replaces {source} by the folder of a checkpoint. "
            "Name that folder when you start the trainer without it"
        )
    shapes, shardings = program.shapes, program.shardings
    wanted, lie = shapes.frozen_params or shapes.params, shardings.frozen_params or shardings.params
    return _read("checkpoint.init_from", source, program.job, wanted, lie, known)


def teacher(source: str, program: TrainProgram, known: Base | None = None) -> Initial:
    """Reads the weights of a program's teacher, from the same places as `initial`.

    Raises what `initial` raises.
    """
    asked = program.teacher
    assert asked
    return _read("distill.teacher", source, asked.network.job, asked.shapes, asked.shardings, known)


def _read(
    key: str,
    source: str,
    job: Job,
    wanted: Mapping[str, jax.ShapeDtypeStruct],
    lie: Mapping[str, Sharding],
    known: Base | None,
) -> Initial:
    """Reads the parameters of a job's model from a source, which a key of the job file names."""
    params, numbers, limit_s = {}, {}, job.deadlines.restore_s
    agreed = partial(_agreed, key, limit_s)
    with ExitStack() as stack:
        with agreed("opened"):
            found = stack.enter_context(opened(to_path(source), job))
            if isinstance(job.model, CustomModel):
                found.check_shapes({name: like.shape for name, like in wanted.items()})
        for name, like in wanted.items():
            with agreed(name):
                array = found.read_as_saved(name, like, lie[name])
            (numbers[name],) = digests([array])
            array = layer_dims.as_wanted(array, like, lie[name])
            params[name] = _kept_as(like.dtype, array, lie[name])
    with agreed("whole"):
        found.check(numbers, known)
    return Initial(params, Base(source=found.source, step=found.step, digests=numbers))


@contextmanager
def _agreed(key: str, limit_s: float, part: str) -> Iterator[None]:
    """Raises an error of one process on all: transient ones as StorageError, else FolderError."""
    error = None
    try:
        yield
    except (ConfigError, BrokenError, StorageError, OSError, ValueError) as problem:
        can_pass = isinstance(problem, StorageError) or is_transient(problem)
        kind = StorageError if can_pass else FolderError
        error = kind(f"{key}: {problem}")
    name = key.rpartition(".")[2]
    consensus.agree(f"{name}/{part}", error, (FolderError, StorageError), limit_s)


def _kept_as(dtype: np.dtype, array: jax.Array, sharding: Sharding) -> jax.Array:
    if array.dtype == dtype:
        return array
    return jax.block_until_ready(jax.jit(lambda x: x.astype(dtype), out_shardings=sharding)(array))


@dataclass(frozen=True)
class Source:
    """A model's parameters in a folder, not read yet."""

    source: str
    """The folder of the parameters."""
    step: int | None
    read: hugging_face.Read
    shapes: Mapping[str, tuple[int, ...]]
    """Their shapes in the folder, which differ from the job's where its layers are in rounds."""
    saved: dict[str, int]
    """Their digests, as far as the folder records them."""
    about: CheckpointMetadata | None = None
    """The metadata of a step folder; None for a Hugging Face folder."""

    def read_as_saved(self, name: str, like: jax.ShapeDtypeStruct, sharding: Sharding) -> jax.Array:
        """Reads a parameter in float32, with its layers in the dims in which they were saved."""
        saved = self.shapes.get(name, like.shape)
        shape, place = layer_dims.as_saved(saved, like, sharding)
        return self.read(name, shape.shape, place)

    def check_shapes(self, wanted: Mapping[str, tuple[int, ...]]) -> None:
        """Raises ConfigError for parameters of another model."""
        if self.about:
            errors = other_parameters(self.about, wanted, weights_prefix(self.about))
            if errors:
                raise ConfigError(errors)

    def check(self, numbers: Mapping[str, int], known: Base | None) -> None:
        """Raises BrokenError when digests of the data read differ from the saved or known ones."""
        if wrong := _differing(numbers, self.saved):
            raise BrokenError(f"{self.source}: the data of {wrong} has changed since it was saved")
        if known and (wrong := _differing(numbers, known.digests)):
            raise BrokenError(
                f"{self.source} does not have the weights that the run began with, which were in "
                f"{known.source}: {wrong} differ"
            )


@contextmanager
def opened(path: epath.Path, job: Job) -> Iterator[Source]:
    """Opens the parameters in a folder.

    Raises ConfigError for another model than the job's, BrokenError when there is none.
    """
    if is_hugging_face(Path(path)):
        with hugging_face.opened(Path(path), job) as read:
            shapes = {one.name: one.shape for one in parameters(job.decoder, vocab_size(job))}
            yield Source(str(path), None, read, shapes, {})
        return
    folder = checkpoint_metadata.newest_step(path)
    about = checkpoint_metadata.read_about(folder)
    if about.base:
        raise ConfigError(
            [
                f"{folder} contains only adapters. Export it with `launch checkpoints export`, and "
                "start from the exported folder"
            ]
        )
    _check_model(of_its_tokenizer(folder, about, job), job)
    prefix = weights_prefix(about)

    def read_saved(name: str, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
        full = prefix + name
        like = jax.ShapeDtypeStruct(shape, np.float32)
        return read_arrays(folder, about, {full: like}, {full: sharding})[full]

    arrays = {name.removeprefix(prefix): array for name, array in about.arrays.items()}
    shapes = {name: array.shape for name, array in arrays.items()}
    saved = {name: array.digest for name, array in arrays.items()}
    yield Source(str(folder), about.step, read_saved, shapes, saved, about)


def _differing(numbers: Mapping[str, int], wanted: Mapping[str, int]) -> str:
    return ", ".join(n for n, number in numbers.items() if wanted.get(n, number) != number)


def weights_prefix(about: CheckpointMetadata) -> str:
    """Returns the prefix of the names of the weights: of their moving mean, if the run has one."""
    return AVERAGE if any(name.startswith(AVERAGE) for name in about.arrays) else PARAMS


class Arrays(Mapping[str, np.ndarray]):
    """A checkpoint's arrays by name, with layers in one dim; each is read and checked on access.

    Raises BrokenError for an array whose data has changed since it was saved.
    """

    def __init__(self, folder: epath.Path, about: CheckpointMetadata, prefix: str = "") -> None:
        self._folder, self._about, self._prefix = folder, about, prefix

    def __iter__(self) -> Iterator[str]:
        for name in self._about.arrays:
            if name.startswith(self._prefix):
                yield name.removeprefix(self._prefix)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> np.ndarray:
        full = self._prefix + name
        array = self._about.arrays[full]
        like = {full: jax.ShapeDtypeStruct(self._about.shape(full), array.dtype)}
        here = SingleDeviceSharding(jax.devices()[0])
        flat = read_arrays(self._folder, self._about, like, {full: here})
        if problem := changed(flat, self._about):
            raise BrokenError(problem)
        return np.asarray(flat[full])


def read_params(
    folder: epath.Path, about: CheckpointMetadata, program: TrainProgram
) -> dict[str, jax.Array]:
    """Reads a checkpoint's weights, or its adapters' weights, in the shardings of a run.

    Raises BrokenError when they have changed since the save, and what Orbax raises.
    """
    shardings, shapes = program.shardings.params, program.shapes.params
    prefix = weights_prefix(about)
    flat = read_arrays(
        folder,
        about,
        {prefix + name: shape for name, shape in shapes.items()},
        {prefix + name: sharding for name, sharding in shardings.items()},
    )
    if problem := changed(flat, about):
        raise BrokenError(f"{folder}: {problem}")
    return {name.removeprefix(prefix): array for name, array in flat.items()}


def _check_model(about: CheckpointMetadata, job: Job) -> None:
    """Raises ConfigError for another model; the data may differ, and the optimizer is new."""
    policy = job.checkpoint or Checkpoint.model_validate({})
    policy = policy.model_copy(update={"on_data_change": "continue"})
    job = job.model_copy(update={"checkpoint": policy, "lora": None})
    now = {"optimizer": job.optimizer.model_dump(mode="json")}
    errors = compare(about.model_copy(update={"job": {**about.job, **now}}), job, None).errors
    if errors:
        raise ConfigError(errors)
