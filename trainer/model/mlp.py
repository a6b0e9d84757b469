"""The feed-forward part of a layer.

The letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Callable
from functools import partial

import jax
from flax import nnx

from trainer.contract.config.model import Model
from trainer.contract.planning.parameter_shapes import hidden_parts
from trainer.model.attention import residual_gain
from trainer.model.layers import Projection
from trainer.model.sharding import constrain

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "swiglu": jax.nn.silu,
    "geglu": partial(jax.nn.gelu, approximate=True),
    "gelu": partial(jax.nn.gelu, approximate=True),
}
"""Activation of the gate, or of `up` without a gate. GELU is the tanh form of GPT-2 and Gemma."""


class MLP(nnx.Module):
    """Computes down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x))).

    References:
        SwiGLU and GEGLU: https://arxiv.org/abs/2002.05202
        GELU: https://arxiv.org/abs/1606.08415
    """

    def __init__(self, rngs: nnx.Rngs, model: Model):
        width, hidden, bias = model.d_model, model.d_ff, model.biases == "all"
        self.parts, self.kind = hidden_parts(model), model.mlp
        for part in self.parts:
            setattr(self, part, Projection(rngs, (width, hidden), ("embed", "mlp"), bias=bias))
        self.down = Projection(
            rngs, (hidden, width), ("mlp", "embed"), gain=residual_gain(model), bias=bias
        )

    def __call__(self, x_BSD: jax.Array) -> jax.Array:
        """Returns the output (B, S, D)."""
        first, *rest = (getattr(self, part)(x_BSD) for part in self.parts)
        hidden_BSF = ACTIVATIONS[self.kind](first)
        for other in rest:
            hidden_BSF = hidden_BSF * other
        return self.down(constrain(hidden_BSF, "batch", "sequence", "mlp"))
