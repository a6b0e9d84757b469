"""Weights without the rest: what `init_from` starts with, and what an export or a check reads."""

import hashlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import numpy as np
from etils import epath
from jax.sharding import SingleDeviceSharding

from trainer import agreement, hugging_face
from trainer.checkpoint.errors import FolderError
from trainer.checkpoint.restore import changed, read_arrays
from trainer.spec import checkpoints
from trainer.spec.checkpoints import ABOUT, TOKENIZER, About, BrokenError
from trainer.spec.config import ConfigError
from trainer.spec.continuity import compare
from trainer.spec.job import Job
from trainer.spec.places import place
from trainer.spec.plan import Plan
from trainer.spec.vocabulary import vocabulary
from trainer.train_step import Trainable

PARAMS, AVERAGE = "params.", "average."
READ_TIMEOUT_S = 3600.0


def initial_params(source: str, trainable: Trainable, plan: Plan) -> dict[str, jax.Array]:
    """Parameters from a run, its checkpoints, one checkpoint, or a Hugging Face folder.

    Raises FolderError, on all processes alike, where they are not there, damaged, or of another
    model.
    """
    params, error = {}, None
    try:
        params = _read(place(source), trainable, plan)
    except (ConfigError, BrokenError, OSError) as problem:
        error = FolderError(f"checkpoint.init_from: {problem}")
    agreement.agree("init_from", error, (FolderError,), READ_TIMEOUT_S)
    return params


def newest(path: epath.Path) -> epath.Path:
    """The newest step folder that is whole, of a run, a folder of checkpoints, or itself.

    Raises BrokenError where there is none.
    """
    if (path / ABOUT).exists():
        return path
    folder = path / "checkpoints" if (path / "checkpoints").exists() else path
    for step in checkpoints.steps(folder):
        try:
            checkpoints.read(folder / str(step))
            return folder / str(step)
        except BrokenError:
            continue
    raise BrokenError(f"{path} is neither a checkpoint nor a folder with one")


def weights_prefix(about: About) -> str:
    """Of the names of a checkpoint's weights: their moving mean, where the run has one."""
    return AVERAGE if any(name.startswith(AVERAGE) for name in about.arrays) else PARAMS


class Arrays(Mapping[str, np.ndarray]):
    """The arrays of a checkpoint, each read from the files when it is asked for, and checked.

    Raises BrokenError for one whose data has changed since it was saved.
    """

    def __init__(self, folder: epath.Path, about: About, prefix: str = "") -> None:
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
        like = {full: jax.ShapeDtypeStruct(array.shape, array.dtype)}
        here = SingleDeviceSharding(jax.devices()[0])
        flat = read_arrays(self._folder, self._about, like, {full: here})
        if problem := changed(flat, self._about):
            raise BrokenError(problem)
        return np.asarray(flat[full])


def _read(path: epath.Path, trainable: Trainable, plan: Plan) -> dict[str, jax.Array]:
    if hugging_face.is_hugging_face(Path(path)):
        shardings = trainable.shardings.params
        return hugging_face.load(Path(path), trainable.job, plan, shardings)
    folder = newest(path)
    about = checkpoints.read_about(folder)
    _check_model(_of_its_tokenizer(folder, about, trainable.job), trainable.job)
    return read_params(folder, about, trainable)


def read_params(folder: epath.Path, about: About, trainable: Trainable) -> dict[str, jax.Array]:
    """The weights of a checkpoint where a run has its parameters.

    Raises BrokenError where they have changed since the save, and what Orbax raises.
    """
    shardings, shapes = trainable.shardings.params, trainable.shapes().params
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


def _of_its_tokenizer(folder: epath.Path, about: About, job: Job) -> About:
    """The same of a job that names the tokenizer's file where the one of `folder` was trained.

    Raises ConfigError where it is another tokenizer, as one that would be trained now may be.
    """
    file = folder / TOKENIZER
    if not file.exists():
        return about
    if hashlib.sha256(file.read_bytes()).hexdigest() != vocabulary(job.data).sha256:
        raise ConfigError(
            [
                f"the weights are of a tokenizer that was trained for them: say {file} "
                "as data.tokenizer"
            ]
        )
    data = {**about.job["data"], "tokenizer": job.data.tokenizer}
    return about.model_copy(update={"job": {**about.job, "data": data}})


def _check_model(about: About, job: Job) -> None:
    """Raises ConfigError for another model; the data may be any."""
    assert job.checkpoint
    policy = job.checkpoint.model_copy(update={"on_data_change": "continue"})
    errors = compare(about, job.model_copy(update={"checkpoint": policy}), None).errors
    if errors:
        raise ConfigError(errors)
