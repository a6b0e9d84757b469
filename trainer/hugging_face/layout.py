"""How each parameter lies in the tensors of a Hugging Face Llama.

Ours are stacked over layers and keep heads as a dim; kernels have their inputs first. Theirs are
one tensor per layer, with two dims, outputs first. Rotary positions turn the same pairs of features
on both sides (i and i + h/2), so that no feature changes its place.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from trainer.spec.job import Model
from trainer.spec.shapes import Parameter, parameters

Box = tuple[slice, ...]
"""A start and a stop for each dim, without steps."""

STACKED = "layers."

STRIP = 256
"""Rows that are transposed at once: what stays in the processor's cache goes 7 times as fast."""

# Name of ours -> (name of theirs, dims of ours that are inputs; 0: the tensor lies as ours does).
_TENSORS = {
    "embedding.table": ("model.embed_tokens.weight", 0),
    "attention_norm.scale": ("input_layernorm.weight", 0),
    "attention.query.kernel": ("self_attn.q_proj.weight", 1),
    "attention.key.kernel": ("self_attn.k_proj.weight", 1),
    "attention.value.kernel": ("self_attn.v_proj.weight", 1),
    "attention.output.kernel": ("self_attn.o_proj.weight", 2),
    "feed_forward_norm.scale": ("post_attention_layernorm.weight", 0),
    "feed_forward.gate.kernel": ("mlp.gate_proj.weight", 1),
    "feed_forward.up.kernel": ("mlp.up_proj.weight", 1),
    "feed_forward.down.kernel": ("mlp.down_proj.weight", 1),
    "final_norm.scale": ("model.norm.weight", 0),
    "output.kernel": ("lm_head.weight", 1),
}


@dataclass(frozen=True)
class Layout:
    """One parameter and its tensors."""

    name: str
    tensors: tuple[str, ...]
    """One per layer for a stacked parameter, else one."""
    shape: tuple[int, ...]
    """Of what one tensor holds, as the parameter has it: no dim for layers, no padded tokens."""
    axes: tuple[str, ...]
    inputs: int

    @property
    def stacked(self) -> bool:
        return self.name.startswith(STACKED)

    @property
    def tensor_shape(self) -> tuple[int, ...]:
        if not self.inputs:
            return self.shape
        return math.prod(self.shape[self.inputs :]), math.prod(self.shape[: self.inputs])

    def to_tensor(self, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
        """One layer of the parameter, copied as the tensor lies; padded tokens are cut off."""
        sizes = zip(self.shape, self.axes, strict=True)
        real = array[tuple(slice(dim if axis == "vocab" else None) for dim, axis in sizes)]
        assert real.shape == self.shape, (self.name, array.shape)
        if not self.inputs:
            return np.array(real, dtype)
        return _transposed(real.reshape(self.tensor_shape[::-1]), dtype)

    def strips(self, box: Box) -> Iterator[Box]:
        """A box in the pieces to `read` it by: a few of the tensor's rows each."""
        if not self.inputs:
            yield box
            return
        cut = box[self.inputs]
        step = max(STRIP // math.prod(self.shape[self.inputs + 1 :]), 1)
        for start in range(cut.start, cut.stop, step):
            piece = slice(start, min(start + step, cut.stop))
            yield (*box[: self.inputs], piece, *box[self.inputs + 1 :])

    def read(self, tensor: Callable[[Box], np.ndarray], box: Box) -> np.ndarray:
        """A box of one layer of the parameter; reads no more of the tensor than the box spans."""
        if not self.inputs:
            return tensor(box)
        n, shape = self.inputs, self.shape
        outputs_inputs = tensor((_span(shape[n:], box[n:]), _span(shape[:n], box[:n])))
        sizes = (_length(box[0]), *shape[1:n], _length(box[n]), *shape[n + 1 :])
        inner = tuple(slice(None) if dim in (0, n) else part for dim, part in enumerate(box))
        return outputs_inputs.T.reshape(sizes)[inner]


def layouts(model: Model, vocab_size: int) -> list[Layout]:
    """All parameters of a model, in the order of the model's own table."""
    return [_layout(model, parameter) for parameter in parameters(model, vocab_size)]


def _layout(model: Model, parameter: Parameter) -> Layout:
    name = parameter.name
    tensor, inputs = _TENSORS[name.removeprefix(STACKED)]
    if not name.startswith(STACKED):
        return Layout(name, (tensor,), parameter.shape, parameter.axes, inputs)
    tensors = tuple(f"model.layers.{layer}.{tensor}" for layer in range(model.layers))
    return Layout(name, tensors, parameter.shape[1:], parameter.axes[1:], inputs)


def _transposed(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    made = np.empty(array.shape[::-1], dtype)
    for start in range(0, len(array), STRIP):
        made[:, start : start + STRIP] = array[start : start + STRIP].T
    return made


def _span(shape: tuple[int, ...], box: Box) -> slice:
    """Where a box lies in the flattened dims: from its first outermost index to its last."""
    inner = math.prod(shape[1:])
    return slice(box[0].start * inner, box[0].stop * inner)


def _length(part: slice) -> int:
    return part.stop - part.start
