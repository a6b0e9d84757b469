"""Dropless mixture of experts: one grouped product per matrix, without a limit on tokens.

grouped_products.py multiplies the rows of each expert by its matrix. The kernel for TPUs computes
only these rows; `jax.lax.ragged_dot` on other platforms computes all rows for every expert.

Rows and experts meet in one of two ways. Either a device gathers the tokens of the other devices
along `expert`, applies its own experts to them, and the sums are scattered back. Or each device
sends a row for each choice to the expert's device, which sends the result back: moe_exchange.py.

The letters of dims are those of trainer/model/__init__.py, counted per device: E are its experts,
and N the choices of its tokens, or of those that it has gathered.

References:
    MegaBlocks: https://arxiv.org/abs/2211.15841
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainer.model.grouped_products import GroupedProduct, by_xla
from trainer.model.moe_dispatch import Routing, combine, dispatch
from trainer.model.moe_exchange import Experts, fed_by_others
from trainer.model.sharding import spec

INWARD, OUTWARD = ("expert", "embed", "mlp"), ("expert", "mlp", "embed")
Activation = Callable[..., jax.Array]


class Matrices(NamedTuple):
    """A matrix of each expert (E, x, y), and the biases (E, y) or None."""

    kernel: jax.Array
    bias: jax.Array | None


AllMatrices = tuple[list[Matrices], Matrices]
"""The inward and the outward matrices of a device's experts."""


def dropless_moe(
    product: GroupedProduct,
    sends_rows: bool,
    activation: Activation,
    x_BSD: jax.Array,
    experts_BSk: jax.Array,
    weights_BSk: jax.Array,
    inward: list[Matrices],
    outward: Matrices,
) -> jax.Array:
    """Returns the weighted sum of the outputs of each token's experts, (B, S, D).

    The activation maps the inward products to hidden values. Matrices have their stored layout, and
    rows are split over all of `BATCH_AXES`. `sends_rows` is the second of the two ways above.
    """
    tokens, of_kernel = spec(x_BSD, "batch", "sequence", None), spec(inward[0].kernel, *INWARD)
    split = jax.shard_map(
        partial(_moe_of_device, product, sends_rows, activation, of_kernel),
        in_specs=(tokens, tokens, tokens, [_specs(x, INWARD) for x in inward],
                  _specs(outward, OUTWARD)),
        out_specs=tokens,
        check_vma=product is by_xla,  # unknown for results of the kernel
    )  # fmt: skip
    return split(x_BSD, experts_BSk, weights_BSk, inward, outward)


def _specs(matrices: Matrices, axes: tuple[str, str, str]) -> Any:
    bias = matrices.bias
    of_bias = None if bias is None else spec(bias, axes[0], axes[2])
    return Matrices(spec(matrices.kernel, *axes), of_bias)  # type: ignore[arg-type]


def _moe_of_device(
    product: GroupedProduct,
    sends_rows: bool,
    activation: Activation,
    of_kernel: PartitionSpec,
    x_BSD: jax.Array,
    experts_BSk: jax.Array,
    weights_BSk: jax.Array,
    inward: list[Matrices],
    outward: Matrices,
) -> jax.Array:
    """Computes the part of one device. `of_kernel` is the spec of the inward matrices."""
    expert, embed, mlp = of_kernel
    if embed:
        inward = [_gathered(matrices, embed, 1) for matrices in inward]
        outward = _gathered(outward, embed, 2)
    if mlp:
        # Each device along `mlp` has a part of the outputs, and so of the gradient of the weights.
        weights_BSk = jax.lax.pcast(weights_BSk, mlp, to="varying")
    if mlp and outward.bias is not None:
        # The outputs are summed: one of the devices adds the bias.
        first_one = jax.lax.axis_index(mlp) == 0
        outward = outward._replace(bias=jnp.where(first_one, outward.bias, 0))

    experts = partial(_apply_experts, product, activation)
    mix = _with_rows_sent if expert and sends_rows else _with_tokens_gathered
    of_tokens = (x.reshape(-1, x.shape[-1]) for x in (x_BSD, experts_BSk, weights_BSk))
    return mix(experts, expert, mlp, (inward, outward), *of_tokens).reshape(x_BSD.shape)


def _with_tokens_gathered(
    experts: Experts[AllMatrices],
    axis: str | None,
    mlp: str | None,
    matrices: AllMatrices,
    x_TD: jax.Array,
    experts_Tk: jax.Array,
    weights_Tk: jax.Array,
) -> jax.Array:
    """Applies the device's experts to the tokens of all devices along `axis`."""
    count = len(matrices[1].kernel)
    first = jax.lax.axis_index(axis) * count if axis else 0
    if axis:
        x_TD, experts_Tk, weights_Tk = (
            jax.lax.all_gather(x, axis, tiled=True) for x in (x_TD, experts_Tk, weights_Tk)
        )
    sizes, routing = _groups(experts_Tk - first, count, has_others=bool(axis))
    fed_ND = experts(matrices, dispatch(x_TD, routing), sizes)
    mixed_TD = combine(fed_ND, weights_Tk, routing)
    if mlp:
        mixed_TD = jax.lax.psum(mixed_TD, mlp)
    return jax.lax.psum_scatter(mixed_TD, axis, tiled=True) if axis else mixed_TD


def _with_rows_sent(
    experts: Experts[AllMatrices],
    axis: str,
    mlp: str | None,
    matrices: AllMatrices,
    x_TD: jax.Array,
    experts_Tk: jax.Array,
    weights_Tk: jax.Array,
) -> jax.Array:
    """Sends a row for each choice to the device of its expert, and gets the result back."""
    devices, count = jax.lax.axis_size(axis), len(matrices[1].kernel)
    sizes, routing = _groups(experts_Tk, devices * count, has_others=False)
    rows_ND = dispatch(x_TD, routing)
    fed_ND = fed_by_others(experts, axis, matrices, sizes.reshape(devices, count), rows_ND)
    mixed_TD = combine(fed_ND, weights_Tk, routing)
    return jax.lax.psum(mixed_TD, mlp) if mlp else mixed_TD


def _apply_experts(
    product: GroupedProduct,
    activation: Activation,
    matrices: AllMatrices,
    rows_ND: jax.Array,
    sizes: jax.Array,
) -> jax.Array:
    inward, outward = matrices
    of_experts = partial(_with_bias, product, sizes)
    hidden_NF = activation(*(of_experts(rows_ND, matrix) for matrix in inward))
    return of_experts(hidden_NF, outward)


def _gathered(matrices: Matrices, embed: str, axis: int) -> Matrices:
    """Gathers the dim of the kernel that `embed` splits, and that of an outward bias."""
    kernel = jax.lax.all_gather(matrices.kernel, embed, axis=axis, tiled=True)
    bias = matrices.bias
    if bias is not None and axis == 2:
        bias = jax.lax.all_gather(bias, embed, axis=1, tiled=True)
    return Matrices(kernel, bias)


def _with_bias(
    product: GroupedProduct, sizes: jax.Array, rows_Nx: jax.Array, matrices: Matrices
) -> jax.Array:
    """Returns the products of each expert's rows with its matrix, and its bias added."""
    product_Nx = product(rows_Nx, matrices.kernel, sizes)
    if matrices.bias is None:
        return product_Nx
    count = len(matrices.kernel)
    experts_N = jnp.repeat(jnp.arange(count), sizes[:count], total_repeat_length=len(rows_Nx))
    return product_Nx + matrices.bias.at[experts_N].get(indices_are_sorted=True)


def _groups(experts_Tk: jax.Array, count: int, *, has_others: bool) -> tuple[jax.Array, Routing]:
    """Returns the row counts of `count` experts, and the rows of the choices.

    Rows are sorted by expert. Choices of experts on other devices come last, as zeros; if there are
    any, their number follows those of the experts.
    """
    is_own_Tk = (experts_Tk >= 0) & (experts_Tk < count)
    experts_N = jnp.where(is_own_Tk, experts_Tk, count).reshape(-1)
    groups = jnp.arange(count + has_others)
    sizes = jnp.sum(experts_N[:, None] == groups, axis=0, dtype=jnp.int32)
    order_N = jnp.argsort(experts_N, stable=True)
    row_Tk = jnp.argsort(order_N).reshape(experts_Tk.shape)
    return sizes, Routing(order_N, is_own_Tk.reshape(-1)[order_N], row_Tk, is_own_Tk)
