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

import math
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from trainer.contract.config.model import Precision
from trainer.model.sharding import largest_of_groups, spec

Axes = tuple[str | None, ...]
Dims = tuple[int, ...]
Entry = str | tuple[str, ...] | None
TOKENS, SLOTS = ("batch", "sequence"), ("expert_batch", None)
"""Logical axes of the dims before the inputs: of tokens, and of the rows of an expert."""

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


def quantize(
    x: jax.Array, dims: tuple[int, ...], dtype: jnp.dtype, *, of_all_rows: bool = False
) -> Quantized:
    """Rounds to 8 bits with one scale for all elements along `dims`.

    `of_all_rows`: `dims` are those of the rows, which can be in several groups. A NaN or an
    infinity makes its scale one, and thus the product.
    """
    wide = x.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=dims, keepdims=True)
    if of_all_rows:
        largest = largest_of_groups(largest)
    # Not zero, not even where a device takes the smallest numbers for zero.
    scale = jnp.maximum(largest / _largest(dtype), jnp.finfo(jnp.float32).tiny)
    scaled = wide / scale
    values = jnp.round(scaled) if jnp.issubdtype(dtype, jnp.integer) else scaled
    return Quantized(values.astype(dtype), jnp.squeeze(scale, dims))


def product(
    x: jax.Array, kernel: jax.Array, contracted: int, axes: Axes, precision: Precision
) -> jax.Array:
    """Returns `jnp.tensordot(x, kernel, contracted)` in 8 bits.

    Operands and result have one dtype. The first dims of `x` are rows and positions. `axes` are the
    logical axes of the kernel, which is gathered along `fsdp`.
    """
    split = tuple(None if axis == "embed" else axis for axis in axes)
    return checkpoint_name(_product(x, kernel, contracted, (TOKENS, split), precision), PRODUCT)


def expert_products(
    x_BECx: jax.Array, kernels: jax.Array, axes: Axes, precision: Precision
) -> jax.Array:
    """Returns the products of each expert's rows with its matrix, (B, E, C, y), in 8 bits."""
    split = tuple(None if axis == "embed" else axis for axis in axes[1:])

    def one_expert(x_BCx: jax.Array, kernel: jax.Array) -> jax.Array:
        return _product(x_BCx, kernel, 1, (SLOTS, split), precision)

    return jax.vmap(one_expert, in_axes=(1, 0), out_axes=1)(x_BECx, kernels)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _product(
    x: jax.Array, kernel: jax.Array, contracted: int, axes: tuple[Axes, Axes], precision: Precision
) -> jax.Array:
    return _forward(x, kernel, contracted, axes, precision)[0]


_Residuals = tuple[Quantized, Quantized]


def _forward(
    x: jax.Array, kernel: jax.Array, contracted: int, axes: tuple[Axes, Axes], precision: Precision
) -> tuple[jax.Array, _Residuals]:
    dtype = FORMATS[precision].forward
    inputs, of_kernel = _last(x, contracted), tuple(range(contracted))
    rows, columns = quantize(x, inputs, dtype), quantize(kernel, of_kernel, dtype)
    parts = _dot(
        (rows.values, inputs), (columns.values, of_kernel), axes[1][:contracted], precision
    )
    outputs = kernel.ndim - contracted
    parts = parts * _with_dims_after(rows.scale, outputs) * columns.scale
    return _total(parts, contracted, x.dtype), (rows, columns)


def _backward(
    contracted: int,
    axes: tuple[Axes, Axes],
    precision: Precision,
    residuals: _Residuals,
    gradient: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    rows, columns = residuals
    dtype, count = FORMATS[precision].backward, columns.values.ndim - contracted
    outputs, tokens = _last(gradient, count), tuple(range(gradient.ndim - count))
    wide = gradient.astype(jnp.float32)

    by_row = quantize(wide * columns.scale, outputs, dtype)
    weights = columns.values, _last(columns.values, count)
    parts = _dot((by_row.values, outputs), weights, axes[1][contracted:], precision)
    parts = parts * _with_dims_after(by_row.scale, contracted)
    x_gradient = _total(parts, count, gradient.dtype)

    scaled = wide * _with_dims_after(rows.scale, count)
    by_column = quantize(scaled, tokens, dtype, of_all_rows=True)
    parts = _dot((rows.values, tokens), (by_column.values, tokens), axes[0], precision)
    return x_gradient, _total(parts * by_column.scale, len(tokens), gradient.dtype)


_product.defvjp(_forward, _backward)


def _dot(
    x: tuple[jax.Array, Dims], y: tuple[jax.Array, Dims], axes: Axes, precision: Precision
) -> jax.Array:
    """Returns the partial sums over dims of `x` and `y` as (part of each dim, ..., rest).

    `axes` are the logical axes of the dims. A dim has as many parts as the mesh splits it into,
    and devices sum only their own: see `_total`.
    """
    entries, counts = _splits(*x, axes)
    (x_parted, *of_x), (y_parted, *of_y) = _parted(*x, counts), _parted(*y, counts)
    sums = jax.lax.dot_general(
        x_parted,
        y_parted,
        ((of_x[0], of_y[0]), (of_x[1], of_y[1])),
        preferred_element_type=FORMATS[precision].sums,
    )
    if any(count > 1 for count in counts):
        free = [PartitionSpec.UNCONSTRAINED] * (sums.ndim - len(entries))
        sums = jax.lax.with_sharding_constraint(sums, PartitionSpec(*entries, *free))
    return sums.astype(jnp.float32)


def _splits(x: jax.Array, dims: Dims, axes: Axes) -> tuple[list[Entry], list[int]]:
    """Returns the mesh axes that split each of `dims`, and the numbers of parts."""
    mesh = dict(jax.sharding.get_abstract_mesh().shape)
    if not mesh:
        return [None] * len(dims), [1] * len(dims)
    of_dims = dict(zip(dims, axes, strict=True))
    layout = spec(x, *(of_dims.get(dim) for dim in range(x.ndim)))
    entries = [layout[dim] for dim in dims]
    return entries, [
        math.prod(mesh[axis] for axis in ((one,) if isinstance(one, str) else one or ()))
        for one in entries
    ]


def _parted(x: jax.Array, dims: Dims, counts: list[int]) -> tuple[jax.Array, Dims, Dims]:
    """Splits dims into (parts, rest); returns the places of the rests and of the parts."""
    shape, rests, parts = list[int](), list[int](), list[int]()
    for dim, size in enumerate(x.shape):
        if dim in dims:
            count = counts[dims.index(dim)]
            parts.append(len(shape))
            rests.append(len(shape) + 1)
            shape += [count, size // count]
        else:
            shape.append(size)
    return x.reshape(shape), tuple(rests), tuple(parts)


def _total(parts: jax.Array, count: int, dtype: jnp.dtype) -> jax.Array:
    """Returns the sum over the first `count` dims, which the mesh may split.

    Devices exchange the parts in `dtype`, like those of other products. A product whose result is
    whole would make them exchange its sums of 32 bits.
    """
    return jax.lax.reduce(parts.astype(dtype), jnp.zeros((), dtype), jax.lax.add, range(count))


def _largest(dtype: jnp.dtype) -> float:
    """Returns the largest value of a format; int8 uses a range that is symmetric about 0."""
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    return float(jnp.iinfo(dtype).max if is_integer else jnp.finfo(dtype).max)


def _last(x: jax.Array, count: int) -> Dims:
    return tuple(range(x.ndim - count, x.ndim))


def _with_dims_after(scale: jax.Array, count: int) -> jax.Array:
    return scale.reshape(*scale.shape, *(1,) * count)
