"""Norms of a position's features."""

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.spec.model import Model


class Norm(nnx.Module):
    """Features at a size of one, times a learned factor each.

    `rms` divides by the root mean square; `layer` by the deviation from the mean, which it takes
    away, and adds a learned bias.
    """

    def __init__(self, model: Model, width: int):
        self.eps, self.kind = model.norm_eps, model.norm
        self.scale = nnx.Param(jnp.ones((width,)), out_sharding=("norm",))
        if self.kind == "layer":
            self.bias = nnx.Param(jnp.zeros((width,)), out_sharding=("norm",))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Over the last dim; same shape and dtype, computed in float32."""
        wide = x.astype(jnp.float32)
        if self.kind == "layer":
            wide = wide - jnp.mean(wide, axis=-1, keepdims=True)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normal = wide * jax.lax.rsqrt(mean_square + self.eps) * self.scale[...]
        if self.kind == "layer":
            normal = normal + self.bias[...]
        return normal.astype(x.dtype)
