"""A linear map over one or more dims."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.model.adapter import Adapter
from trainer.model.sharding import gathered


class Projection(nnx.Module):
    """Contracts the last `contracted` dims of its input with the first ones of its kernel.

    `lora` is an adapter of it: see adapter.py.
    """

    def __init__(
        self,
        rngs: nnx.Rngs,
        shape: Sequence[int],
        axes: Sequence[str],
        contracted: int = 1,
        gain: float = 1.0,
        *,
        bias: bool = False,
    ):
        self.contracted, self.axes, self.has_bias = contracted, tuple(axes), bias
        deviation = gain / math.sqrt(math.prod(shape[:contracted]))
        kernel = deviation * jax.random.normal(rngs.params(), tuple(shape))
        self.kernel = nnx.Param(kernel, out_sharding=self.axes)
        self.lora: Adapter | None = nnx.data(None)
        if bias:
            zeros = jnp.zeros(tuple(shape[contracted:]))
            self.bias = nnx.Param(zeros, out_sharding=self.axes[contracted:])

    def __call__(self, x: jax.Array) -> jax.Array:
        """The product in the dtype of `x`."""
        kernel = gathered(self.kernel[...].astype(x.dtype), self.axes)
        product = jnp.tensordot(x, kernel, self.contracted)
        if self.lora is not None:
            product = product + self.lora(x)
        if not self.has_bias:
            return product
        return product + gathered(self.bias[...].astype(x.dtype), self.axes[self.contracted :])
