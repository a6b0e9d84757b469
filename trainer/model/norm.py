"""RMSNorm."""

import jax
import jax.numpy as jnp
from flax import nnx


class RMSNorm(nnx.Module):
    """Scales every position to a root mean square of one, then by a learned factor per feature."""

    def __init__(self, width: int, eps: float):
        self.eps = eps
        self.scale = nnx.Param(jnp.ones((width,)), out_sharding=("norm",))

    def __call__(self, x_BSD: jax.Array) -> jax.Array:
        """Same shape and dtype; computed in float32."""
        wide = x_BSD.astype(jnp.float32)
        mean_square = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
        normal = wide * jax.lax.rsqrt(mean_square + self.eps)
        return (normal * self.scale[...]).astype(x_BSD.dtype)
