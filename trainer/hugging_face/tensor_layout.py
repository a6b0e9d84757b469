"""How each parameter lies in the tensors of a Hugging Face model.

Ours are stacked over layers, and experts, and keep heads as a dim; kernels have their inputs first.
Theirs are one tensor per layer and expert, with two dims, outputs first in most. Rotary positions
turn the same pairs of features on both sides (i and i + h/2), so that no feature changes its place.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trainer.contract.config.model import Model
from trainer.contract.planning.parameter_shapes import STACKED, Parameter, parameters
from trainer.hugging_face.families import family
from trainer.hugging_face.tensor_map import TensorMapping

Box = tuple[slice, ...]
"""A start and a stop for each dim, without steps."""

STRIP = 256
"""Rows that are transposed at once: what stays in the processor's cache goes 7 times as fast."""


@dataclass(frozen=True)
class Layout:
    """One parameter and its tensors."""

    name: str
    stack: tuple[int, ...]
    """Leading dims of the parameter that count tensors."""
    tensors: tuple[str, ...]
    """In the order of the stack; one where there is none."""
    shape: tuple[int, ...]
    """Of what it has in one tensor: without the stack and without padded tokens."""
    axes: tuple[str, ...]
    place: TensorMapping

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Also of the other parameters' parts."""
        n, parts = self.place.inputs, self.place.parts
        inputs, outputs = math.prod(self.shape[:n]), parts * math.prod(self.shape[n:])
        if not n:
            return (outputs,)
        return (inputs, outputs) if self.place.inputs_first else (outputs, inputs)

    def to_tensor(self, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """One of the stack, copied as it lies in its tensor; padded tokens are cut off."""
        sizes = zip(self.shape, self.axes, strict=True)
        real = array[tuple(slice(dim if axis == "vocab" else None) for dim, axis in sizes)]
        assert real.shape == self.shape, (self.name, array.shape)
        real, n = real - np.float32(self.place.offset), self.place.inputs
        if not n:
            return real.reshape(-1).astype(dtype)
        inputs_outputs = real.reshape(math.prod(self.shape[:n]), -1)
        if self.place.inputs_first:
            return inputs_outputs.astype(dtype)
        return _transposed(inputs_outputs, dtype)

    def strips(self, box: Box) -> Iterator[Box]:
        """A box in the pieces to `read` it by: a few of the tensor's rows each."""
        n = self.place.inputs
        if not n or self.place.inputs_first:
            yield box
            return
        cut = box[n]
        step = max(STRIP // math.prod(self.shape[n + 1 :]), 1)
        for start in range(cut.start, cut.stop, step):
            piece = slice(start, min(start + step, cut.stop))
            yield (*box[:n], piece, *box[n + 1 :])

    def read(self, tensor: Callable[[Box], np.ndarray], box: Box) -> np.ndarray:
        """A box of one of the stack; reads no more of the tensor than the box spans."""
        n, shape, place = self.place.inputs, self.shape, self.place
        before = place.part * math.prod(shape[n:])
        outputs = _span(shape[n:], box[n:], before)
        if not n:
            found, cut = tensor((outputs,)), {0}
        else:
            inputs = _span(shape[:n], box[:n])
            places = (inputs, outputs) if place.inputs_first else (outputs, inputs)
            found, cut = tensor(places), {0, n}
            found = found if place.inputs_first else found.T
        sizes = [_length(box[dim]) if dim in cut else shape[dim] for dim in range(len(shape))]
        inner = tuple(slice(None) if dim in cut else part for dim, part in enumerate(box))
        part = found.reshape(sizes)[inner]
        return part + np.float32(place.offset) if place.offset else part


def layouts(model: Model, vocab_size: int) -> list[Layout]:
    """All parameters of a model, in the order of the model's own table.

    Raises ConfigError where Hugging Face has no such model.
    """
    places = family(model).places
    return [
        _layout(places[parameter.name], parameter) for parameter in parameters(model, vocab_size)
    ]


def _layout(place: TensorMapping, parameter: Parameter) -> Layout:
    stacked = sum(axis in STACKED for axis in parameter.axes)
    axes, stack = parameter.axes[:stacked], parameter.shape[:stacked]
    tensors = tuple(
        place.tensor.format(**dict(zip(axes, numbers, strict=True)))
        for numbers in itertools.product(*map(range, stack))
    )
    shape = parameter.shape[stacked:]
    return Layout(parameter.name, stack, tensors, shape, parameter.axes[stacked:], place)


def _transposed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    made = np.empty(array.shape[::-1], dtype)
    for start in range(0, len(array), STRIP):
        made[:, start : start + STRIP] = array[start : start + STRIP].T
    return made


def _span(shape: tuple[int, ...], box: Box, before: int = 0) -> slice:
    """Where a box lies in the flattened dims: from its first outermost index to its last."""
    inner = math.prod(shape[1:])
    return slice(before + box[0].start * inner, before + box[0].stop * inner)


def _length(part: slice) -> int:
    return part.stop - part.start
