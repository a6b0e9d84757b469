"""SwiGLU: the feed-forward part of a layer."""

import jax
from flax import nnx

from trainer.model.attention import residual_gain
from trainer.model.projection import Projection
from trainer.model.sharding import constrain
from trainer.spec.job import Model


class FeedForward(nnx.Module):
    """down(silu(gate(x)) * up(x))."""

    def __init__(self, rngs: nnx.Rngs, model: Model):
        width, hidden = model.d_model, model.d_ff
        self.gate = Projection(rngs, (width, hidden), ("embed", "mlp"))
        self.up = Projection(rngs, (width, hidden), ("embed", "mlp"))
        self.down = Projection(rngs, (hidden, width), ("mlp", "embed"), gain=residual_gain(model))

    def __call__(self, x_BSD: jax.Array) -> jax.Array:
        """(B, S, D)."""
        hidden_BSF = jax.nn.silu(self.gate(x_BSD)) * self.up(x_BSD)
        return self.down(constrain(hidden_BSF, "batch", None, "mlp"))
