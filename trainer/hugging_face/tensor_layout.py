"""Layout of each parameter in the tensors of a Hugging Face model.

Slipway stacks parameters over layers and experts, keeps heads as a dim, and puts a kernel's inputs
first. Hugging Face has one tensor per layer and expert, with two dims, in most with outputs first.
Rotary positions rotate the same pairs of features on both sides (i and i + h/2), so features keep
their order.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trainer.contract.config.model import Model
from trainer.contract.hugging_face.families import family
from trainer.contract.planning.layer_stacks import layer_stacks
from trainer.contract.planning.parameter_shapes import STACKED, Parameter, parameters
from trainer.hugging_face.tensor_map import LLAMA, OTHERS, TensorMapping

Box = tuple[slice, ...]
"""A start and a stop for each dim, without steps."""

STRIP = 256
"""Rows that are transposed together: data that stays in the CPU's cache is 7 times as fast."""


@dataclass(frozen=True)
class Layout:
    """One parameter and its tensors."""

    name: str
    stack: tuple[int, ...]
    """Leading dims of the parameter, which index tensors."""
    tensors: tuple[str, ...]
    """Names of the tensors in the order of the stack; one name without a stack."""
    shape: tuple[int, ...]
    """Shape of its part of one tensor, without the stack and without padded tokens."""
    axes: tuple[str, ...]
    mapping: TensorMapping

    @property
    def experts(self) -> tuple[int, ...]:
        """Leading dim of the shape that is the tensor's first dim, too; empty without one."""
        return self.shape[:1] if self.mapping.has_experts else ()

    @property
    def matrix(self) -> tuple[int, ...]:
        """Shape of the part that belongs to one expert, or of all of it."""
        return self.shape[len(self.experts) :]

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        """Shape of a tensor, including the parts of other parameters."""
        n, parts = self.mapping.inputs, self.mapping.parts
        inputs, outputs = math.prod(self.matrix[:n]), parts * math.prod(self.matrix[n:])
        if not n:
            return (*self.experts, outputs)
        sides = (inputs, outputs) if self.mapping.inputs_first else (outputs, inputs)
        return (*self.experts, *sides)

    def to_tensor(self, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """Copies one element of the stack into its tensor's layout, without padded tokens."""
        sizes = zip(self.shape, self.axes, strict=True)
        real = array[tuple(slice(dim if axis == "vocab" else None) for dim, axis in sizes)]
        assert real.shape == self.shape, (self.name, array.shape)
        real, n = real - np.float32(self.mapping.offset), self.mapping.inputs
        if not n:
            return real.reshape(*self.experts, -1).astype(dtype)
        inputs_outputs = real.reshape(*self.experts, math.prod(self.matrix[:n]), -1)
        if self.mapping.inputs_first:
            return inputs_outputs.astype(dtype)
        return _transposed(inputs_outputs, dtype)

    def joined(self, parts: list[np.ndarray]) -> np.ndarray:
        """Returns the tensor made of the parts of all parameters that share it, in their order."""
        if len(parts) == 1:
            return parts[0]
        if self.mapping.interleaved:
            return np.stack(parts, axis=-1).reshape(*parts[0].shape[:-1], -1)
        outputs = -1 if self.mapping.inputs_first or not self.mapping.inputs else 0
        return np.concatenate(parts, axis=outputs)

    def strips(self, box: Box) -> Iterator[Box]:
        """Yields the pieces of a box to `read` one by one: a few rows of the tensor each."""
        n = self.mapping.inputs
        if self.mapping.has_experts:
            for expert in range(box[0].start, box[0].stop):
                yield (slice(expert, expert + 1), *box[1:])
            return
        if not n or self.mapping.inputs_first:
            yield box
            return
        cut = box[n]
        step = max(STRIP // math.prod(self.shape[n + 1 :]), 1)
        for start in range(cut.start, cut.stop, step):
            piece = slice(start, min(start + step, cut.stop))
            yield (*box[:n], piece, *box[n + 1 :])

    def read(self, tensor: Callable[[Box], np.ndarray], box: Box) -> np.ndarray:
        """Returns a box of one element of the stack; reads only what the box spans."""
        mapping, leading = self.mapping, len(self.experts)
        n, shape, experts, box = mapping.inputs, self.matrix, box[:leading], box[leading:]
        outputs, own = self._outputs(box)
        if not n:
            found, cut = tensor((*experts, outputs))[..., own], {0}
        else:
            inputs = _span(shape[:n], box[:n])
            spans = (inputs, outputs) if mapping.inputs_first else (outputs, inputs)
            found, cut = tensor((*experts, *spans)), {0, n}
            found = (found if mapping.inputs_first else found.T)[..., own]
        sizes = [_length(box[dim]) if dim in cut else shape[dim] for dim in range(len(shape))]
        inner = tuple(slice(None) if dim in cut else part for dim, part in enumerate(box))
        part = found.reshape(*map(_length, experts), *sizes)[(..., *inner)]
        return part + np.float32(mapping.offset) if mapping.offset else part

    def _outputs(self, box: Box) -> tuple[slice, slice]:
        """Returns the outputs of the tensor that a box spans, and its own ones among these."""
        shape, mapping = self.matrix[self.mapping.inputs :], self.mapping
        if mapping.interleaved:
            own = _span(shape, box[mapping.inputs :])
            spanned = slice(own.start * mapping.parts, own.stop * mapping.parts)
            return spanned, slice(mapping.part, None, mapping.parts)
        before = mapping.part * math.prod(shape)
        return _span(shape, box[mapping.inputs :], before), slice(None)


def layouts(model: Model, vocab_size: int) -> list[Layout]:
    """Returns the layouts of all parameters, in the order of the model's own table.

    Raises ConfigError when Hugging Face does not support the model.
    """
    mappings = OTHERS.get(family(model).kind, LLAMA)
    first_of = {stack.name: stack.first for stack in layer_stacks(model)}
    return [
        _layout(mappings[one.name], one, first_of.get(one.name.partition(".")[0], 0))
        for one in parameters(model, vocab_size)
    ]


def _layout(mapping: TensorMapping, parameter: Parameter, first_layer: int) -> Layout:
    stacked = sum(axis in STACKED for axis in parameter.axes) - mapping.has_experts
    axes, stack = parameter.axes[:stacked], parameter.shape[:stacked]
    first = [first_layer if axis == "layer" else 0 for axis in axes]
    ranges = (range(start, start + size) for start, size in zip(first, stack, strict=True))
    tensors = tuple(
        mapping.tensor.format(**dict(zip(axes, numbers, strict=True)))
        for numbers in itertools.product(*ranges)
    )
    shape = parameter.shape[stacked:]
    return Layout(parameter.name, stack, tensors, shape, parameter.axes[stacked:], mapping)


def _transposed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    made = np.empty(array.shape[::-1], dtype)
    for start in range(0, len(array), STRIP):
        made[:, start : start + STRIP] = array[start : start + STRIP].T
    return made


def _span(shape: tuple[int, ...], box: Box, before: int = 0) -> slice:
    """Returns a box's range in the flattened dims: from first to last outermost index."""
    inner = math.prod(shape[1:])
    return slice(before + box[0].start * inner, before + box[0].stop * inner)


def _length(part: slice) -> int:
    return part.stop - part.start
