"""Exports a trainer's parameters as a Hugging Face folder."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.config.model import CustomModel
from trainer.contract.hugging_face import config
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.hugging_face import safetensors, tokenizer
from trainer.hugging_face.safetensors import Tensor
from trainer.hugging_face.tensor_layout import Layout, layouts

SHARD_BYTES = 5 * 10**9
RECORD, PARTIAL = "export.json", ".export.json"
"""Name of the file with the source of an exported folder, and its name until all is written."""

Group = list[Layout]
"""Parameters that share the same tensors, in the order of their parts."""


def export(
    job: Job,
    params: Mapping[str, Any],
    to: Path,
    dtype: Literal["float32", "bfloat16"] = "float32",
    shard_bytes: int = SHARD_BYTES,
    trained: str = "",
    source: str = "",
) -> None:
    """Writes the model of `job` with `params` into the folder `to`, which must be new or empty.

    What an interrupted export has left there is replaced. `source`: what is recorded in the folder
    as the origin of the weights, see `source_of`.

    Raises ConfigError when Hugging Face does not support the model, FileExistsError.

    Values of `params` become numpy arrays as needed: memory holds the parameters of one `Group`
    and the tensors of one file. `trained` is the content of a trained tokenizer's file.
    config.json is written last: a folder without it is not recognized.
    """
    if isinstance(job.model, CustomModel):
        raise ConfigError(
            [f"model.module: `transformers` cannot load a custom model ({job.model.module})"]
        )
    all_layouts = layouts(job.model, vocab_size(job))
    _check(all_layouts, params)
    _make_empty(to)
    _write_json(to / PARTIAL, {"source": source})
    _write_weights(_groups(all_layouts), params, to, jnp.dtype(dtype), shard_bytes)
    for name, content in tokenizer.files(job.data, trained).items():
        _write_json(to / name, content)
    _write_json(to / config.CONFIG, config.make(job, dtype))
    (to / PARTIAL).rename(to / RECORD)


def source_of(folder: Path) -> str | None:
    """Returns the source of a complete export; None for any other folder."""
    try:
        return json.loads((folder / RECORD).read_text(encoding="utf-8"))["source"]
    except (OSError, ValueError, KeyError):
        return None


def _groups(all_layouts: list[Layout]) -> list[Group]:
    """Returns the parameters grouped by shared tensors, ordered by the first of each group."""
    groups: dict[tuple[str, ...], Group] = {}
    for layout in all_layouts:
        groups.setdefault(layout.tensors, []).append(layout)
    return list(groups.values())


def _write_weights(
    groups: list[Group], params: Mapping[str, Any], to: Path, dtype: np.dtype, limit: int
) -> None:
    tensors = [tensor for group in groups for tensor in _tensors(group, dtype)]
    files = safetensors.files(tensors, limit)
    arrays = _arrays(groups, params, dtype)
    for name, shard in files.items():
        safetensors.write(to / name, dict(islice(arrays, len(shard))))
    if len(files) > 1:
        _write_json(to / safetensors.INDEX, safetensors.index(files))


def _tensors(group: Group, dtype: np.dtype) -> Iterator[Tensor]:
    for name in group[0].tensors:
        shape = group[0].tensor_shape
        yield Tensor(name, shape, int(np.prod(shape)) * dtype.itemsize)


def _arrays(
    groups: list[Group], params: Mapping[str, Any], dtype: np.dtype
) -> Iterator[tuple[str, np.ndarray]]:
    """Yields every tensor in the order of `_tensors`."""
    for group in groups:
        # Only `_split` refers to the arrays: they are freed before the next ones are loaded.
        yield from _split(group, [np.asarray(params[layout.name]) for layout in group], dtype)


def _split(
    group: Group, arrays: list[np.ndarray], dtype: np.dtype
) -> Iterator[tuple[str, np.ndarray]]:
    for name, number in zip(group[0].tensors, np.ndindex(group[0].stack), strict=True):
        parts = [
            layout.to_tensor(array[number], dtype)
            for layout, array in zip(group, arrays, strict=True)
        ]
        yield name, group[0].joined(parts)


def _check(all_layouts: list[Layout], params: Mapping[str, Any]) -> None:
    names = {layout.name for layout in all_layouts}
    missing, unexpected = sorted(names - set(params)), sorted(set(params) - names)
    if missing or unexpected:
        raise ValueError(
            f"the parameters are not those of the job's model: missing {missing}, "
            f"unexpected {unexpected}"
        )


def _make_empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / PARTIAL).exists():
        for path in folder.iterdir():
            path.unlink()
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty. Choose a new or an empty folder")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
