"""A trainer's parameters as a Hugging Face folder."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np

from trainer.hugging_face import config, tokenizer, weights
from trainer.hugging_face.layout import Layout, layouts
from trainer.hugging_face.weights import Tensor
from trainer.spec.job import Job
from trainer.spec.resolve import vocab_size

SHARD_BYTES = 5 * 10**9


def export(
    job: Job,
    params: Mapping[str, Any],
    to: Path,
    dtype: Literal["float32", "bfloat16"] = "float32",
    shard_bytes: int = SHARD_BYTES,
    trained: str = "",
) -> None:
    """Writes the model of `job` with `params` into the folder `to`, which must be new or empty.

    Each value of `params` becomes a numpy array when its turn has come: in memory there are one
    parameter and the tensors of one file. `trained` is the file of a tokenizer that was trained.
    config.json is written last: without it a folder is none.
    """
    all_layouts = layouts(job.model, vocab_size(job))
    _check(all_layouts, params)
    _make_empty(to)
    _write_weights(all_layouts, params, to, jnp.dtype(dtype), shard_bytes)
    for name, content in tokenizer.files(job.data, trained).items():
        _write_json(to / name, content)
    _write_json(to / config.CONFIG, config.make(job, dtype))


def _write_weights(
    all_layouts: list[Layout], params: Mapping[str, Any], to: Path, dtype: np.dtype, limit: int
) -> None:
    tensors = [tensor for layout in all_layouts for tensor in _tensors(layout, dtype)]
    files = weights.files(tensors, limit)
    arrays = _arrays(all_layouts, params, dtype)
    for name, shard in files.items():
        weights.write(to / name, dict(islice(arrays, len(shard))))
    if len(files) > 1:
        _write_json(to / weights.INDEX, weights.index(files))


def _tensors(layout: Layout, dtype: np.dtype) -> Iterator[Tensor]:
    for name in layout.tensors:
        shape = layout.tensor_shape
        yield Tensor(name, shape, int(np.prod(shape)) * dtype.itemsize)


def _arrays(
    all_layouts: list[Layout], params: Mapping[str, Any], dtype: np.dtype
) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor in the order of `_tensors`."""
    for layout in all_layouts:
        # The array's only reference is inside: it is gone before the next one is loaded.
        yield from _split(layout, np.asarray(params[layout.name]), dtype)


def _split(layout: Layout, array: np.ndarray, dtype: np.dtype) -> Iterator[tuple[str, np.ndarray]]:
    for name, layer in zip(layout.tensors, array if layout.stacked else [array], strict=True):
        yield name, layout.to_tensor(layer, dtype)


def _check(all_layouts: list[Layout], params: Mapping[str, Any]) -> None:
    names = {layout.name for layout in all_layouts}
    missing, unexpected = sorted(names - set(params)), sorted(set(params) - names)
    if missing or unexpected:
        raise ValueError(f"not the job's model: missing {missing}, unexpected {unexpected}")


def _make_empty(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder}: not empty; name a new folder")


def _write_json(path: Path, content: dict[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
