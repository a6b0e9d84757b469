"""LoRA adapters: low-rank products beside frozen kernels, trained in their place."""

import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.lora import Lora
from trainer.contract.planning.lora import A, adapters
from trainer.contract.planning.parameter_shapes import Parameter
from trainer.model.sharding import gathered


class Adapter(nnx.Module):
    """The product scale (x A) B, with B initialized to zero.

    Both matrices are stacked over all layers.

    References:
        LoRA: https://arxiv.org/abs/2106.09685
    """

    def __init__(self, rngs: nnx.Rngs, first: Parameter, second: Parameter, scale: float):
        self.scale, self.contracted = scale, len(first.shape) - 2
        self.first_axes, self.second_axes = first.axes[1:], second.axes[1:]
        deviation = 1 / math.sqrt(math.prod(first.shape[1:-1]))
        drawn = deviation * jax.random.normal(rngs.params(), first.shape)
        self.a = nnx.Param(drawn, out_sharding=first.axes)
        self.b = nnx.Param(jnp.zeros(second.shape), out_sharding=second.axes)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the term that is added to the kernel's product, in the dtype of `x`."""
        first = gathered(self.a[...].astype(x.dtype), self.first_axes)
        second = gathered(self.b[...].astype(x.dtype), self.second_axes)
        return self.scale * jnp.tensordot(jnp.tensordot(x, first, self.contracted), second, 1)


def attach(module: nnx.Module, rngs: nnx.Rngs, lora: Lora, parameters: Sequence[Parameter]) -> None:
    """Attaches adapters to the kernels of a model with these `parameters`."""
    found = adapters(lora, parameters)
    for first, second in zip(found[::2], found[1::2], strict=True):
        beside: Any = module
        for part in first.name.removesuffix(A).split("."):
            beside = getattr(beside, part)
        beside.lora = Adapter(rngs, first, second, lora.scale)


def merged(kernel: jax.Array, a: jax.Array, b: jax.Array, scale: float) -> jax.Array:
    """Returns the kernels of all layers with the adapters merged in: kernel + scale A B."""
    product = jax.vmap(lambda a, b: jnp.tensordot(a, b, 1))(a, b)
    return kernel + scale * product
