"""Matrix products in 8 bits, in the forward and the backward pass.

Each operand is divided by a scale per channel, which is its largest absolute value over the dims
that the product sums. The values are rounded to 8 bits, the product is summed in 32 bits, and the
sums are multiplied by the scales of both operands. A scale along a dim that the mesh splits is the
maximum over all devices, so it does not depend on the mesh. Devices round their own shards of a
kernel before they gather it, which sends half of the bytes of bfloat16.

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
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.sharding import PartitionSpec

from trainer.contract.config.model import Precision
from trainer.model.sharding import constrain, gathered, largest_of_groups, scattered, spec

Names = tuple[str, ...]
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
    x: jax.Array, kernel: jax.Array, contracted: int, axes: Names, precision: Precision
) -> jax.Array:
    """Returns `jnp.tensordot(x, kernel, contracted)` in 8 bits.

    Operands and result have one dtype. The first dims of `x` are rows and positions. `axes` are the
    logical axes of the kernel. Devices gather its values along `fsdp` in 8 bits.
    """
    return checkpoint_name(_product(x, kernel, contracted, (TOKENS, axes), precision), PRODUCT)


def expert_products(
    x_BECx: jax.Array, kernels: jax.Array, axes: Names, precision: Precision
) -> jax.Array:
    """Returns the products of each expert's rows with its matrix, (B, E, C, y), in 8 bits."""

    def one_expert(x_BCx: jax.Array, kernel: jax.Array) -> jax.Array:
        return _product(x_BCx, kernel, 1, (SLOTS, axes[1:]), precision)

    split_by, *_ = _entries(kernels, axes)
    of_all = jax.vmap(one_expert, in_axes=(1, 0), out_axes=1, spmd_axis_name=split_by)
    return of_all(x_BECx, kernels)


@partial(jax.custom_vjp, nondiff_argnums=(2, 3, 4))
def _product(
    x: jax.Array, kernel: jax.Array, contracted: int, axes: tuple[Axes, Names], precision: Precision
) -> jax.Array:
    return _forward(x, kernel, contracted, axes, precision)[0]


_Residuals = tuple[Quantized, Quantized]


def _forward(
    x: jax.Array, kernel: jax.Array, contracted: int, axes: tuple[Axes, Names], precision: Precision
) -> tuple[jax.Array, _Residuals]:
    dtype = FORMATS[precision].forward
    inputs, of_kernel = _last(x, contracted), tuple(range(contracted))
    rows, columns = quantize(x, inputs, dtype), quantize(kernel, of_kernel, dtype)
    # Without the constraint, the compiler gathers numbers before they are rounded.
    own = constrain(columns.values, *axes[1])
    columns = columns._replace(values=gathered(own, axes[1]))
    tokens, kernels = axes[0], _of_gathered(axes[1])
    result = _sums(
        _Factor(rows.values, inputs, (*tokens, *kernels[:contracted])),
        _Factor(columns.values, of_kernel, kernels),
        (_with_dims_after(rows.scale, kernel.ndim - contracted), columns.scale),
        precision,
        x.dtype,
    )
    return result, (rows, columns)


def _backward(
    contracted: int,
    axes: tuple[Axes, Names],
    precision: Precision,
    residuals: _Residuals,
    gradient: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    rows, columns = residuals
    tokens, kernels = axes[0], _of_gathered(axes[1])
    dtype, count = FORMATS[precision].backward, columns.values.ndim - contracted
    outputs, of_tokens = _last(gradient, count), tuple(range(gradient.ndim - count))
    of_inputs, of_outputs = (*tokens, *kernels[:contracted]), (*tokens, *kernels[contracted:])
    wide = gradient.astype(jnp.float32)

    by_row = quantize(wide * columns.scale, outputs, dtype)
    x_gradient = _sums(
        _Factor(by_row.values, outputs, of_outputs),
        _Factor(columns.values, _last(columns.values, count), kernels),
        (_with_dims_after(by_row.scale, contracted),),
        precision,
        gradient.dtype,
    )
    scaled = wide * _with_dims_after(rows.scale, count)
    by_column = quantize(scaled, of_tokens, dtype, of_all_rows=True)
    kernel_gradient = _sums(
        _Factor(rows.values, of_tokens, of_inputs),
        _Factor(by_column.values, of_tokens, of_outputs),
        (by_column.scale,),
        precision,
        gradient.dtype,
    )
    return x_gradient, scattered(kernel_gradient, axes[1])


_product.defvjp(_forward, _backward)


def _of_gathered(axes: Names) -> Axes:
    """Returns the logical axes of a kernel that is gathered along `fsdp`."""
    return tuple(None if axis == "embed" else axis for axis in axes)


class _Factor(NamedTuple):
    """A factor of a product in 8 bits."""

    values: jax.Array
    summed: Dims
    """The dims that the product sums."""
    axes: Axes
    """The logical axis of each dim."""


def _sums(
    x: _Factor,
    y: _Factor,
    scales: tuple[jax.Array, ...],
    precision: Precision,
    dtype: jnp.dtype,
) -> jax.Array:
    """Returns the product of `x` and `y` with dims (rest of x, rest of y), times `scales`.

    Where the mesh splits a dim that is summed, devices multiply their parts and exchange the
    results in `dtype`, like those of other products. The compiler would exchange sums of 32 bits.
    """
    of_x, of_y = _entries(x.values, x.axes), _entries(y.values, y.axes)
    rests = [*_rest(of_x, x.summed), *_rest(of_y, y.summed)]
    axes = [*_rest(x.axes, x.summed), *_rest(y.axes, y.summed)]
    exchanging = [name for dim in x.summed for name in _names(of_x[dim])]

    def of_device(x_values: jax.Array, y_values: jax.Array, *scales: jax.Array) -> jax.Array:
        sums = jax.lax.dot_general(
            x_values,
            y_values,
            ((x.summed, y.summed), ((), ())),
            preferred_element_type=FORMATS[precision].sums,
        )
        scaled = math.prod(scales, start=sums.astype(jnp.float32)).astype(dtype)
        return jax.lax.psum(scaled, exchanging) if exchanging else scaled

    arrays = (x.values, y.values, *scales)
    if not exchanging:
        return of_device(*arrays)
    of_scales = [_entries(scale, axes[len(axes) - scale.ndim :]) for scale in scales]
    split = jax.shard_map(
        of_device,
        in_specs=tuple(PartitionSpec(*entries) for entries in (of_x, of_y, *of_scales)),
        out_specs=PartitionSpec(*rests),
        check_vma=False,
    )
    return split(*arrays)


def _entries(x: jax.Array, axes: Sequence[str | None]) -> tuple[Entry, ...]:
    """Returns the mesh axes that split each dim of `x`."""
    if jax.sharding.get_abstract_mesh().empty:
        return (None,) * x.ndim
    return tuple(spec(x, *axes))


def _names(entry: Entry) -> tuple[str, ...]:
    """Returns the mesh axes of an entry that have several devices."""
    sizes = jax.sharding.get_abstract_mesh().shape
    names = (entry,) if isinstance(entry, str) else entry or ()
    return tuple(name for name in names if sizes[name] > 1)


def _rest(values: Sequence[Any], dims: Dims) -> list[Any]:
    return [one for dim, one in enumerate(values) if dim not in dims]


def _largest(dtype: jnp.dtype) -> float:
    """Returns the largest value of a format; int8 uses a range that is symmetric about 0."""
    is_integer = jnp.issubdtype(dtype, jnp.integer)
    return float(jnp.iinfo(dtype).max if is_integer else jnp.finfo(dtype).max)


def _last(x: jax.Array, count: int) -> Dims:
    return tuple(range(x.ndim - count, x.ndim))


def _with_dims_after(scale: jax.Array, count: int) -> jax.Array:
    return scale.reshape(*scale.shape, *(1,) * count)
