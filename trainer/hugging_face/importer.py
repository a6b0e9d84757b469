"""Imports a Hugging Face folder as parameters; each host reads what its devices hold."""

from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Sharding

from trainer.contract.config.job import Job
from trainer.contract.config.loader import ConfigError
from trainer.contract.hugging_face import config
from trainer.contract.storage.tokenizer_info import vocab_size
from trainer.hugging_face.safetensors import FLOATS, Weights
from trainer.hugging_face.tensor_layout import Box, Layout, layouts

Bounds = tuple[tuple[int, int], ...]
"""A start and a stop for each dim; unlike slices, usable as a key of a dict."""
Read = Callable[[str, tuple[int, ...], Sharding], jax.Array]
"""(name, shape, sharding) -> a parameter in float32; each process reads what it holds."""

COMPUTED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
"""Name suffixes of tensors in old folders that are computed from the config."""


@contextmanager
def opened(path: Path, job: Job) -> Iterator[Read]:
    """Yields a function that reads parameters in float32, one by one; padding tokens are zeros.

    Raises ConfigError with every key of the config that differs from the job. If none does, it
    names every tensor that is missing, unexpected, of another shape or of an unsupported dtype.
    """
    config.check(path, job)
    with Weights.open(path) as weights:
        all_layouts = layouts(job.decoder, vocab_size(job))
        _check(path, weights, all_layouts)
        layout_of = {layout.name: layout for layout in all_layouts}

        def read(name: str, shape: tuple[int, ...], sharding: Sharding) -> jax.Array:
            array = _array(weights, layout_of[name], shape, sharding)
            # The host's copies of one parameter are freed before the next one is read.
            return jax.block_until_ready(array)

        yield read


def _array(
    weights: Weights, layout: Layout, shape: tuple[int, ...], sharding: Sharding
) -> jax.Array:
    """Reads each part once, however many devices hold it; host memory holds one at a time."""
    devices_of = defaultdict(list)
    for device, index in sharding.addressable_devices_indices_map(shape).items():
        devices_of[_bounds(index, shape)].append(device)
    shards = []
    for bounds, devices in devices_of.items():
        part = part_of(weights, layout, bounds)
        shards += [jax.device_put(part, device) for device in devices]
    return jax.make_array_from_single_device_arrays(shape, sharding, shards)


def _bounds(index: tuple[slice, ...] | None, shape: tuple[int, ...]) -> Bounds:
    assert index is not None
    return tuple(part.indices(dim)[:2] for part, dim in zip(index, shape, strict=True))


def part_of(weights: Weights, layout: Layout, bounds: Bounds) -> np.ndarray:
    """Returns one device's part of a parameter, with the stacked dims first."""
    part = np.zeros([stop - start for start, stop in bounds], np.float32)
    stacked = len(layout.stack)
    numbers = np.arange(len(layout.tensors)).reshape(layout.stack)
    wanted = numbers[tuple(slice(start, stop) for start, stop in bounds[:stacked])]
    for index, number in np.ndenumerate(wanted):
        _fill(part[index], weights, layout, layout.tensors[number], bounds[stacked:])
    return part


def _fill(part: np.ndarray, weights: Weights, layout: Layout, tensor: str, bounds: Bounds) -> None:
    """Fills `part` from one tensor of the stack; padding tokens, which it lacks, stay zero."""
    box: Box = tuple(
        slice(start, min(stop, dim))
        for (start, stop), dim in zip(bounds, layout.shape, strict=True)
    )
    if any(inside.start >= inside.stop for inside in box):
        return
    for strip in layout.strips(box):
        indices = tuple(
            slice(inside.start - start, inside.stop - start)
            for inside, (start, _) in zip(strip, bounds, strict=True)
        )
        part[indices] = layout.read(lambda rows: weights.read(tensor, rows), strip)


def _check(path: Path, weights: Weights, all_layouts: list[Layout]) -> None:
    problems = [f"{path}: {problem}" for problem in _differences(weights, all_layouts)]
    if problems:
        raise ConfigError(problems)


def _differences(weights: Weights, all_layouts: list[Layout]) -> Iterator[str]:
    found = {n: shape for n, shape in weights.shapes().items() if not n.endswith(COMPUTED)}
    wanted = {name: layout.tensor_shape for layout in all_layouts for name in layout.tensors}
    for name, shape in wanted.items():
        if name not in found:
            yield f"{name} is missing"
        elif found[name] != shape:
            yield f"{name} has shape {found[name]}, but the job's model has {shape}"
        elif weights.dtype(name) not in FLOATS:
            yield f"{name} has dtype {weights.dtype(name)}, expected one of {', '.join(FLOATS)}"
    yield from (f"{name} is unexpected" for name in found if name not in wanted)
