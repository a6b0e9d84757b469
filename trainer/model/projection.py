"""A linear map without bias, over one or more dims."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.model.sharding import gathered


class Projection(nnx.Module):
    """Contracts the last `contracted` dims of its input with the first ones of its kernel."""

    def __init__(
        self,
        rngs: nnx.Rngs,
        shape: Sequence[int],
        axes: Sequence[str],
        contracted: int = 1,
        gain: float = 1.0,
    ):
        self.contracted, self.axes = contracted, tuple(axes)
        deviation = gain / math.sqrt(math.prod(shape[:contracted]))
        kernel = deviation * jax.random.normal(rngs.params(), tuple(shape))
        self.kernel = nnx.Param(kernel, out_sharding=self.axes)

    def __call__(self, x: jax.Array) -> jax.Array:
        """The product in the dtype of `x`."""
        kernel = gathered(self.kernel[...].astype(x.dtype), self.axes)
        return jnp.tensordot(x, kernel, self.contracted)
