"""A model of one's own: the next token from the few before it, through one hidden layer."""

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class Recent(nnx.Module):
    """Parameters say what their dims are; where those lie is up to the mesh."""

    def __init__(self, vocab_size: int, window: int, width: int, hidden: int, rngs: nnx.Rngs):
        def param(*shape: int, axes: tuple[str, ...], scale: float) -> nnx.Param:
            return nnx.Param(scale * jax.random.normal(rngs.params(), shape), out_sharding=axes)

        inputs = window * width
        self.table = param(vocab_size, width, axes=("vocab", "embed"), scale=0.02)
        self.up = param(
            window, width, hidden, axes=("position", "embed", "mlp"), scale=inputs**-0.5
        )
        self.down = param(hidden, width, axes=("mlp", "embed"), scale=hidden**-0.5)

    def loss(self, batch, keys_B) -> jax.Array:
        """(B, S): of each target. What stands before its document is not seen."""
        x_BSD = self.table[...][batch.tokens]
        hidden_BSF = sum(
            jnp.where(batch.positions[:, :, None] >= back, jnp.roll(x_BSD, back, axis=1), 0) @ up_DF
            for back, up_DF in enumerate(self.up[...])
        )
        logits_BSV = jax.nn.gelu(hidden_BSF) @ self.down[...] @ self.table[...].T
        return optax.softmax_cross_entropy_with_integer_labels(logits_BSV, batch.targets)


def build(vocab_size: int, rngs: nnx.Rngs, window: int = 4, width: int = 64, hidden: int = 256):
    """Called by Slipway with the job's `model.args`."""
    return Recent(vocab_size, window, width, hidden, rngs)
