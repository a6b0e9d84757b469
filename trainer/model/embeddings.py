"""Tables of tokens and positions, and the output projection.

The letters of dims are those of trainer/model/__init__.py.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.model.sharding import constrain, gathered, stages

EMBEDDING_DEVIATION = 0.02
"""Standard deviation of initial embeddings, as in GPT (Radford et al., "Improving language
understanding by generative pre-training", 2018)."""


@dataclass(frozen=True)
class Vocabulary:
    """Number of tokens, and number of table rows including padding."""

    size: int
    padded: int


class Embedding(nnx.Module):
    """A table with a row per token; padding rows are zero."""

    def __init__(self, rngs: nnx.Rngs, vocabulary: Vocabulary, width: int):
        rows = _token_rows(rngs, vocabulary, width) * EMBEDDING_DEVIATION
        self.table = nnx.Param(rows, out_sharding=("vocab", "embed"))

    def __call__(self, tokens_BS: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """Returns the tokens' rows (B, S, D) in `dtype`."""
        with jax.named_scope("embedding"):
            table_VD = gathered(self.table[...].astype(dtype), ("vocab", "embed"))
            if stages() > 1:
                # Otherwise the compiler may send the table's gradient from stage to stage.
                table_VD = constrain(table_VD, "vocab", None)
            return constrain(table_VD[tokens_BS], "batch", "sequence", None)


class Positions(nnx.Module):
    """A table with a learned row per position."""

    def __init__(self, rngs: nnx.Rngs, count: int, width: int):
        rows_PD = EMBEDDING_DEVIATION * jax.random.normal(rngs.params(), (count, width))
        self.table = nnx.Param(rows_PD, out_sharding=("position", "embed"))

    def __call__(self, positions_BS: jax.Array, dtype: jnp.dtype) -> jax.Array:
        """Returns (B, S, D) in `dtype`; positions beyond the table get its last row."""
        table_PD = gathered(self.table[...].astype(dtype), ("position", "embed"))
        rows_BSD = jnp.take(table_PD, positions_BS, axis=0, mode="clip")
        return constrain(rows_BSD, "batch", "sequence", None)


class Output(nnx.Module):
    """Output projection (D, V) of a model whose embeddings are not tied."""

    def __init__(self, rngs: nnx.Rngs, vocabulary: Vocabulary, width: int):
        kernel_DV = _token_rows(rngs, vocabulary, width).T * width**-0.5
        self.kernel = nnx.Param(kernel_DV, out_sharding=("embed", "vocab"))


def _token_rows(rngs: nnx.Rngs, vocabulary: Vocabulary, width: int) -> jax.Array:
    """Draws normal rows (V, D); padding rows are zero.

    Row v does not depend on the padding: a larger draw begins with the same rows.
    """
    rows_VD = jax.random.normal(rngs.params(), (vocabulary.padded, width))
    real_V = jnp.arange(vocabulary.padded) < vocabulary.size
    return jnp.where(real_V[:, None], rows_VD, 0)
