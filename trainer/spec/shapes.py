"""Every parameter of a job's model: its name, shape and logical axes, without building the model.

A test holds this table against the NNX modules in `trainer/model/`.
"""

import math
from dataclasses import dataclass

from trainer.spec.job import Model

# Lanes of a TPU register and a common tile of GPU matrix units: a vocabulary that is a multiple of
# it pads to nothing inside the compiler.
VOCAB_MULTIPLE = 128


@dataclass(frozen=True)
class Parameter:
    """One array of the model; `axes` names the logical axis of each dim of `shape`."""

    name: str
    shape: tuple[int, ...]
    axes: tuple[str, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def padded_vocab(vocab_size: int, tensor: int) -> int:
    """Rows of the embedding table: `vocab_size`, up to a multiple that the tensor axis divides."""
    multiple = math.lcm(VOCAB_MULTIPLE, tensor)
    return -(-vocab_size // multiple) * multiple


def parameters(model: Model, vocab: int) -> list[Parameter]:
    """All parameters in the order of their names in the model; `vocab` is the padded vocabulary.

    Layers are stacked: dim 0 of every array under `layers` counts them.
    """
    table = [Parameter("embedding.table", (vocab, model.d_model), ("vocab", "embed"))]
    final = [Parameter("final_norm.scale", (model.d_model,), ("norm",))]
    if not model.tied_embeddings:
        final.append(Parameter("output.kernel", (model.d_model, vocab), ("embed", "vocab")))
    return table + _layer_parameters(model) + final


def _layer_parameters(model: Model) -> list[Parameter]:
    width, heads, kv_heads = model.d_model, model.heads, model.kv_heads
    head, hidden = model.head_dim, model.d_ff
    query = ("embed", "heads", "head_dim")
    key_value = ("embed", "kv_heads", "head_dim")
    one_layer = [
        ("attention_norm.scale", (width,), ("norm",)),
        ("attention.query.kernel", (width, heads, head), query),
        ("attention.key.kernel", (width, kv_heads, head), key_value),
        ("attention.value.kernel", (width, kv_heads, head), key_value),
        ("attention.output.kernel", (heads, head, width), ("heads", "head_dim", "embed")),
        ("feed_forward_norm.scale", (width,), ("norm",)),
        ("feed_forward.gate.kernel", (width, hidden), ("embed", "mlp")),
        ("feed_forward.up.kernel", (width, hidden), ("embed", "mlp")),
        ("feed_forward.down.kernel", (hidden, width), ("mlp", "embed")),
    ]
    return [
        Parameter(f"layers.{name}", (model.layers, *shape), ("layer", *axes))
        for name, shape, axes in one_layer
    ]
