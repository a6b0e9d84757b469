"""The layers that the decoder is made of: norms, projections and rotary positions.

The letters of dims are those of trainer/model/__init__.py.
"""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.model import Model, Precision
from trainer.contract.config.model_parts import RopeScaling
from trainer.model import quantized
from trainer.model.lora import Adapter
from trainer.model.sharding import gathered


class Norm(nnx.Module):
    """RMS or layer normalization, with a learned scale per feature.

    `rms` divides by the root mean square. `layer` subtracts the mean, divides by the standard
    deviation, and adds a learned bias.

    References:
        RMSNorm: https://arxiv.org/abs/1910.07467
        Layer normalization: https://arxiv.org/abs/1607.06450
    """

    def __init__(self, model: Model, width: int, dims: int = 1):
        """Builds a norm over the last `dims` dims, whose sizes multiply to `width`."""
        self.eps, self.kind, self.dims = model.norm_eps, model.norm, dims
        self.scale = nnx.Param(jnp.ones((width,)), out_sharding=("norm",))
        if self.kind == "layer":
            self.bias = nnx.Param(jnp.zeros((width,)), out_sharding=("norm",))

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalizes over the last dims; same shape and dtype, computed in float32."""
        wide = x.astype(jnp.float32)
        axes, shape = tuple(range(-self.dims, 0)), x.shape[-self.dims :]
        if self.kind == "layer":
            wide = wide - jnp.mean(wide, axis=axes, keepdims=True)
        mean_square = jnp.mean(jnp.square(wide), axis=axes, keepdims=True)
        normal = wide * jax.lax.rsqrt(mean_square + self.eps) * self.scale[...].reshape(shape)
        if self.kind == "layer":
            normal = normal + self.bias[...].reshape(shape)
        return normal.astype(x.dtype)


class Projection(nnx.Module):
    """Contracts the last `contracted` dims of its input with the first ones of its kernel.

    Initial kernels are normal, with the variance gain^2 / number of inputs. `lora` is the kernel's
    adapter, if any: see lora.py. `precision` is that of the kernel's product: see quantized.py.

    References:
        The variance: LeCun et al., "Efficient BackProp", 1998.
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
        precision: Precision | None = None,
    ):
        self.contracted, self.axes, self.has_bias = contracted, tuple(axes), bias
        self.precision: Precision | None = precision
        deviation = gain / math.sqrt(math.prod(shape[:contracted]))
        kernel = deviation * jax.random.normal(rngs.params(), tuple(shape))
        self.kernel = nnx.Param(kernel, out_sharding=self.axes)
        self.lora: Adapter | None = nnx.data(None)
        if bias:
            zeros = jnp.zeros(tuple(shape[contracted:]))
            self.bias = nnx.Param(zeros, out_sharding=self.axes[contracted:])

    def __call__(self, x: jax.Array) -> jax.Array:
        """Returns the product in the dtype of `x`."""
        kernel = self.kernel[...].astype(x.dtype)
        if self.precision is None:
            product = jnp.tensordot(x, gathered(kernel, self.axes), self.contracted)
        else:
            product = quantized.product(x, kernel, self.contracted, self.axes, self.precision)
        if self.lora is not None:
            product = product + self.lora(x)
        if not self.has_bias:
            return product
        return product + gathered(self.bias[...].astype(x.dtype), self.axes[self.contracted :])


@jax.custom_vjp
def logits_product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """Returns the matrix product in float32; its gradients are products in the dtype of `x`.

    The gradient of the logits is rounded to that dtype. Without this, JAX would widen `x` and the
    kernel to float32, and a GPU multiply at half its speed.
    """
    return jnp.matmul(x, kernel, preferred_element_type=jnp.float32)


def _logits_forward(
    x: jax.Array, kernel: jax.Array
) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
    return logits_product(x, kernel), (x, kernel)


def _logits_backward(
    operands: tuple[jax.Array, jax.Array], gradient: jax.Array
) -> tuple[jax.Array, ...]:
    x, kernel = operands
    rounded = gradient.astype(x.dtype)
    of_x = jax.linear_transpose(lambda x: jnp.matmul(x, kernel), x)(rounded)
    of_kernel = jax.linear_transpose(lambda kernel: jnp.matmul(x, kernel), kernel)(rounded)
    return *of_x, *of_kernel


logits_product.defvjp(_logits_forward, _logits_backward)


def rotate(
    x_BSHh: jax.Array, positions_BS: jax.Array, theta: float, scaling: RopeScaling | None = None
) -> jax.Array:
    """Applies rotary positions in the half-split layout; same shape and dtype.

    Features i and i + h/2 are rotated by the angle position * theta^(-2i/h), computed in float32.
    `scaling` extends the positions beyond those of training; None: none.

    References:
        RoFormer, which pairs neighbouring features: https://arxiv.org/abs/2104.09864
        Half-split layout: `rotate_half` in transformers, models/llama/modeling_llama.py
    """
    half = x_BSHh.shape[-1] // 2
    frequency_G = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if scaling is not None:
        frequency_G = _scaled(frequency_G, theta, scaling)
    angle_BS1G = positions_BS[:, :, None, None].astype(jnp.float32) * frequency_G
    cos, sin = jnp.cos(angle_BS1G), jnp.sin(angle_BS1G)
    if scaling is not None and scaling.kind == "yarn" and scaling.mscale is None:
        cos, sin = (x * yarn_size(scaling.factor) for x in (cos, sin))
    first, second = x_BSHh[..., :half].astype(jnp.float32), x_BSHh[..., half:].astype(jnp.float32)
    rotated = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(rotated, axis=-1).astype(x_BSHh.dtype)


def yarn_size(factor: float, mscale: float = 1.0) -> float:
    """Returns the factor of queries and of keys with YaRN.

    References:
        Section 3.4 of https://arxiv.org/abs/2309.00071
        `mscale`: `yarn_get_mscale` of DeepSeek-V2's published code
    """
    return 0.1 * mscale * math.log(factor) + 1


def _scaled(frequency_G: jax.Array, theta: float, scaling: RopeScaling) -> jax.Array:
    """Divides rotary frequencies by `factor`: all of them, or only low ones.

    Llama 3.1 counts rotations over the trained positions. Below `low_frequency_factor` rotations
    it divides, above `high_frequency_factor` it does not; in between it interpolates linearly.
    YaRN interpolates linearly in the number of the frequency.

    References:
        Linear: position interpolation, https://arxiv.org/abs/2306.15595
        Llama 3.1: `apply_scaling` in https://github.com/meta-llama/llama-models,
        models/llama3/model.py
        YaRN: section 3.2 of https://arxiv.org/abs/2309.00071; its published code rounds the range
        (`truncate`) as DeepSeek does
    """
    slowed_G = frequency_G / scaling.factor
    if scaling.kind == "linear":
        return slowed_G
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    if scaling.kind == "yarn":
        size = 2 * len(frequency_G)
        fast, slow = (
            size
            * math.log(scaling.original_max_positions / (2 * math.pi * turns))
            / (2 * math.log(theta))
            for turns in (high, low)
        )
        if scaling.truncate:
            fast, slow = float(math.floor(fast)), float(math.ceil(slow))
        fast, slow = max(fast, 0.0), min(slow, size - 1.0)
        kept_G = 1 - jnp.clip((jnp.arange(size // 2) - fast) / max(slow - fast, 1e-3), 0, 1)
        return slowed_G * (1 - kept_G) + frequency_G * kept_G
    turns_G = scaling.original_max_positions * frequency_G / (2 * math.pi)
    kept_G = jnp.clip((turns_G - low) / (high - low), 0, 1)
    return slowed_G * (1 - kept_G) + frequency_G * kept_G
