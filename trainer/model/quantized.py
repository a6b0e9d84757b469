"""Matrix products in 8 bits, in the forward and the backward pass.

Each operand is divided by a scale per channel, which is its largest absolute value over the dims
that the product sums. The values are rounded to 8 bits, the product is summed in 32 bits, and the
sums are multiplied by the scales of both operands. A scale along a dim that the mesh splits is the
maximum over all devices, so it does not depend on the mesh.

The backward pass reuses the values of the forward pass. Their scales lie along the dims that it
sums, so they are multiplied into the gradient before that is rounded.

References:
    Products of three passes in int8, with scales moved into the gradient: AQT,
    https://github.com/google/aqt, and `dot_general_qt` in https://github.com/google/qwix
    E4M3 for inputs and weights, E5M2 for gradients: https://arxiv.org/abs/2209.05433
    Scales of rows and columns: LLM.int8(), section 2.1, https://arxiv.org/abs/2208.07339

The letters of dims are those of trainer/model/__init__.py.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name

from trainer.contract.config.model import Precision

PRODUCT = "product in 8 bits"
"""Name of the results that rematerialization keeps with `dots`."""


class _Format(NamedTuple):
    forward: jnp.dtype
    """Dtype of inputs and weights."""
    backward: jnp.dtype
    """Dtype of gradients."""
    sums: jnp.dtype


FORMATS: dict[Precision, _Format] = {
    "int8": _Format(jnp.dtype(jnp.int8), jnp.dtype(jnp.int8), jnp.dtype(jnp.int32)),
    "fp8": _Format(
        jnp.dtype(jnp.float8_e4m3fn), jnp.dtype(jnp.float8_e5m2), jnp.dtype(jnp.float32)
    ),
}


class Quantized(NamedTuple):
    """An array in 8 bits: it is about `values` times `scale`."""

    values: jax.Array
    scale: jax.Array
    """In float32, without the dims that share a scale."""


def quantize(x: jax.Array, dims: tuple[int, ...], dtype: jnp.dtype) -> Quantized:
    """Rounds to 8 bits with one scale for all elements along `dims`.

    A NaN or an infinity makes its scale one, and thus the product.
    """
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=dims, keepdims=True)
    scale = jnp.where(largest == 0, 1.0, largest / _largest(dtype))
    scaled = wide / scale
    values = jnp.round(scaled) if jnp.issubdtype(dtype, jnp.integer) else scaled
    return Quantized(values.astype(dtype), jnp.squeeze(scale, dims))


def product(x: jax.Array, kernel: jax.Array, contracted: int, precision: Precision) -> jax.Array:
    """Returns `jnp.tensordot(x, kernel, contracted)` in 8 bits, in the dtype of `x`."""
    return checkpoint_name(_product(x, kernel, contracted, precision), PRODUCT)


def expert_products(x_BECx: jax.Array, kernel_Exy: jax.Array, precision: Precision) -> jax.Array:
    """Returns the products of each expert's rows with its matrix, (B, E, C, y), in 8 bits."""
    one = partial(_product, contracted=1, precision=precision)
    return jax.vmap(one, in_axes=(1, 0), out_axes=1)(x_BECx, kernel_Exy)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3))
def _product(x: jax.Array, kernel: jax.Array, contracted: int, precision: Precision) -> jax.Array:
    return _forward(x, kernel, contracted, precision)[0]


_Residuals = tuple[Quantized, Quantized, jax.Array, jax.Array]


def _forward(
    x: jax.Array, kernel: jax.Array, contracted: int, precision: Precision
) -> tuple[jax.Array, _Residuals]:
    dtype = FORMATS[precision].forward
    inputs, of_kernel = _last(x, contracted), tuple(range(contracted))
    rows, columns = quantize(x, inputs, dtype), quantize(kernel, of_kernel, dtype)
    sums = _dot(rows.values, columns.values, inputs, of_kernel, precision)
    outputs = kernel.ndim - contracted
    scaled = sums * _with_dims_after(rows.scale, outputs) * columns.scale
    # Empty arrays carry the dtypes of both gradients.
    empty = (jnp.zeros(0, x.dtype), jnp.zeros(0, kernel.dtype))
    return scaled.astype(x.dtype), (rows, columns, *empty)


def _backward(
    contracted: int, precision: Precision, residuals: _Residuals, gradient: jax.Array
) -> tuple[jax.Array, jax.Array]:
    rows, columns, of_x, of_kernel = residuals
    dtype, count = FORMATS[precision].backward, columns.values.ndim - contracted
    outputs, tokens = _last(gradient, count), tuple(range(gradient.ndim - count))
    wide = gradient.astype(jnp.float32)

    by_row = quantize(wide * columns.scale, outputs, dtype)
    sums = _dot(by_row.values, columns.values, outputs, _last(columns.values, count), precision)
    x_gradient = sums * _with_dims_after(by_row.scale, contracted)

    by_column = quantize(wide * _with_dims_after(rows.scale, count), tokens, dtype)
    sums = _dot(rows.values, by_column.values, tokens, tokens, precision)
    kernel_gradient = sums * by_column.scale
    return x_gradient.astype(of_x.dtype), kernel_gradient.astype(of_kernel.dtype)


_product.defvjp(_forward, _backward)


def _dot(
    x: jax.Array, y: jax.Array, of_x: tuple[int, ...], of_y: tuple[int, ...], precision: Precision
) -> jax.Array:
    """Returns the sums over the dims `of_x` of `x` and `of_y` of `y`, in float32."""
    sums = FORMATS[precision].sums
    found = jax.lax.dot_general(x, y, ((of_x, of_y), ((), ())), preferred_element_type=sums)
    return found.astype(jnp.float32)


def _largest(dtype: jnp.dtype) -> float:
    """Returns the largest value of a format; int8 uses a range that is symmetric about 0."""
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    return float(jnp.iinfo(dtype).max if is_integer else jnp.finfo(dtype).max)


def _last(x: jax.Array, count: int) -> tuple[int, ...]:
    return tuple(range(x.ndim - count, x.ndim))


def _with_dims_after(scale: jax.Array, count: int) -> jax.Array:
    return scale.reshape(*scale.shape, *(1,) * count)
