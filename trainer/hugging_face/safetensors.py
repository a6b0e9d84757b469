"""Tensors in a folder's safetensors files: written file by file, read slice by slice."""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trainer.contract.config.loader import ConfigError
from trainer.hugging_face import mxfp4
from trainer.hugging_face.tensor_layout import Box

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

FLOATS = ("F32", "BF16", "F16")


@dataclass(frozen=True)
class Tensor:
    """A tensor to write."""

    name: str
    shape: tuple[int, ...]
    bytes: int


def files(tensors: Sequence[Tensor], shard_bytes: int) -> dict[str, list[Tensor]]:
    """Returns file name -> its tensors, in their order; a file holds at least one."""
    shards: list[list[Tensor]] = [[]]
    left = shard_bytes
    for tensor in tensors:
        if shards[-1] and tensor.bytes > left:
            shards.append([])
            left = shard_bytes
        shards[-1].append(tensor)
        left -= tensor.bytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    count = len(shards)
    return {
        f"model-{number:05d}-of-{count:05d}.safetensors": shard
        for number, shard in enumerate(shards, 1)
    }


def index(files: dict[str, list[Tensor]]) -> dict[str, Any]:
    """Returns the content of the index of several files."""
    size = sum(tensor.bytes for shard in files.values() for tensor in shard)
    where = {tensor.name: name for name, shard in files.items() for tensor in shard}
    return {"metadata": {"total_size": size}, "weight_map": where}


def write(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """Writes one file; the arrays must be contiguous."""
    from safetensors.numpy import save_file

    # `transformers` rejects a file without this metadata.
    save_file(tensors, path, metadata={"format": "pt"})


class Weights:
    """The open files of a folder: only their headers are read until `read` is called."""

    def __init__(self, file_of: dict[str, Any]):
        self._file_of = file_of

    @classmethod
    @contextmanager
    def open(cls, folder: Path) -> Iterator["Weights"]:
        """Opens all files in the folder. Raises ConfigError when a file is broken."""
        from safetensors import SafetensorError, safe_open

        file_of: dict[str, Any] = {}
        with ExitStack() as stack:
            for path in _paths(folder):
                try:
                    file = stack.enter_context(safe_open(path, framework="numpy"))
                except (OSError, SafetensorError) as error:
                    raise ConfigError([f"{path}: cannot be read: {error}"]) from None
                file_of |= dict.fromkeys(file.keys(), file)
            yield cls(file_of)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Returns tensor name -> shape; blocks in MXFP4 and their scales are one tensor."""
        found = {name: tuple(self._slice(name).get_shape()) for name in self._file_of}
        for name in filter(self._is_mxfp4, [name.removesuffix(mxfp4.BLOCKS) for name in found]):
            blocks, scales = found[name + mxfp4.BLOCKS], found[name + mxfp4.SCALES]
            if len(blocks) == 4 and blocks == (*scales, mxfp4.BLOCK // 2):
                del found[name + mxfp4.BLOCKS], found[name + mxfp4.SCALES]
                found[name] = mxfp4.shape_of(blocks)
        return found

    def dtype(self, name: str) -> str:
        """Returns the name of the dtype in safetensors: F32, BF16, ... MXFP4 counts as F32."""
        return "F32" if self._is_mxfp4(name) else self._slice(name).get_dtype()

    def read(self, name: str, box: Box) -> np.ndarray:
        """Returns a part of a tensor, in the file's dtype or decoded."""
        if not self._is_mxfp4(name):
            return self._slice(name)[box]
        experts, inputs, outputs = box
        blocks, inside = mxfp4.blocks_of(inputs)
        packed = (self._slice(name + end) for end in (mxfp4.BLOCKS, mxfp4.SCALES))
        return mxfp4.decoded(*(part[experts, outputs, blocks] for part in packed))[:, inside]

    def _is_mxfp4(self, name: str) -> bool:
        return name + mxfp4.BLOCKS in self._file_of and name + mxfp4.SCALES in self._file_of

    def _slice(self, name: str) -> Any:
        return self._file_of[name].get_slice(name)


def _paths(folder: Path) -> list[Path]:
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    source = folder / INDEX
    try:
        names = set(json.loads(source.read_text(encoding="utf-8"))["weight_map"].values())
    except FileNotFoundError:
        raise ConfigError([f"{folder} contains neither {SINGLE} nor {INDEX}"]) from None
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ConfigError([f"{source}: not an index of safetensors files: {error}"]) from None
    return [folder / name for name in sorted(names)]
