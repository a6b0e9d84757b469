"""The feed-forward part of a layer.

The letters of dims are those of trainer/model/__init__.py.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.model import Model
from trainer.contract.planning.parameter_shapes import hidden_parts
from trainer.model.attention import residual_gain
from trainer.model.layers import Projection
from trainer.model.remat import named
from trainer.model.sharding import constrain

CLAMP, SIGMOID_SCALE = 7.0, 1.702
"""Constants of gpt-oss: `swiglu_limit` and the factor in its sigmoid."""


def clamped_swiglu(gate: jax.Array, up: jax.Array) -> jax.Array:
    """Returns the hidden values of gpt-oss: a clamped SwiGLU with one added to `up`.

    References:
        `swiglu` in https://github.com/openai/gpt-oss, gpt_oss/torch/model.py
    """
    gate, up = jnp.minimum(gate, CLAMP), jnp.clip(up, -CLAMP, CLAMP)
    return gate * jax.nn.sigmoid(SIGMOID_SCALE * gate) * (up + 1)


gelu = partial(jax.nn.gelu, approximate=True)

ACTIVATIONS: dict[str, Callable[..., jax.Array]] = {
    "swiglu": lambda gate, up: jax.nn.silu(gate) * up,
    "geglu": lambda gate, up: gelu(gate) * up,
    "gelu": gelu,
    "clamped_swiglu": clamped_swiglu,
}
"""Hidden values from `gate` and `up`, or from `up` alone.

GELU is the tanh form of GPT-2 and Gemma.
"""


class MLP(nnx.Module):
    """Computes down(activation(gate(x)) * up(x)), or without a gate down(activation(up(x))).

    References:
        SwiGLU and GEGLU: https://arxiv.org/abs/2002.05202
        GELU: https://arxiv.org/abs/1606.08415
    """

    def __init__(self, rngs: nnx.Rngs, model: Model, hidden: int):
        width, bias = model.d_model, model.biases == "all"
        self.parts, self.kind = hidden_parts(model), model.mlp
        for part in self.parts:
            inward = (width, hidden), ("embed", "mlp")
            projection = Projection(rngs, *inward, bias=bias, precision=model.precision)
            setattr(self, part, projection)
        self.down = Projection(
            rngs,
            (hidden, width),
            ("mlp", "embed"),
            gain=residual_gain(model),
            bias=bias,
            precision=model.precision,
        )

    def __call__(self, x_BSD: jax.Array) -> jax.Array:
        """Returns the output (B, S, D)."""
        parts = (named(getattr(self, part)(x_BSD), "mlp_hidden") for part in self.parts)
        hidden_BSF = constrain(ACTIVATIONS[self.kind](*parts), "batch", "sequence", "mlp")
        return self.down(hidden_BSF)
