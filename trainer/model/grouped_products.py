"""Products of groups of rows, each with the matrix of its group, by JAX's kernels for TPUs.

XLA has such a kernel for `jax.lax.ragged_dot`, too, but none for the gradient of the matrices, for
which libtpu 0.0.42 multiplies all rows for every group. The letters of dims are those of
trainer/model/__init__.py; E are the groups.

References:
    MegaBlocks: https://arxiv.org/abs/2211.15841
"""

import math
from collections.abc import Callable
from functools import partial

import jax

from trainer.contract.planning.plan import MoEKind

TILE = (512, 1024, 1024)
"""Rows, inputs and outputs in a tile, which fit the VMEM of every TPU. A tile of more rows reads a
matrix less often."""
LEAST_ROWS = 128
"""Smallest tile of rows."""

GroupedProduct = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Function (rows (N, x), matrices (E, x, y), sizes) -> (N, y).

The rows are sorted by group. `sizes` has the number of rows of each group, and may end with that of
rows of none, whose results are zeros.
"""


def by_xla(rows_Nx: jax.Array, matrices_Ex: jax.Array, sizes: jax.Array) -> jax.Array:
    """Returns the products by `jax.lax.ragged_dot`: see GroupedProduct."""
    return jax.lax.ragged_dot(rows_Nx, matrices_Ex, sizes[: len(matrices_Ex)])


def by_kernel(
    rows_Nx: jax.Array, matrices_Ex: jax.Array, sizes: jax.Array, *, interpret: bool = False
) -> jax.Array:
    """Returns the products by Megablox: see GroupedProduct.

    Rows that whole tiles do not cover are left to XLA. `interpret` computes without a TPU, slowly.
    """
    if len(rows_Nx) % LEAST_ROWS:
        return by_xla(rows_Nx, matrices_Ex, sizes)
    return _of_tiles(rows_Nx, matrices_Ex, sizes, interpret)


@partial(jax.custom_vjp, nondiff_argnums=(3,))
def _of_tiles(
    rows_Nx: jax.Array, matrices_Ex: jax.Array, sizes: jax.Array, interpret: bool
) -> jax.Array:
    return _product(rows_Nx, matrices_Ex, sizes, interpret)


def _product(
    rows_Nx: jax.Array,
    matrices_Ex: jax.Array,
    sizes: jax.Array,
    interpret: bool,
    *,
    is_transposed: bool = False,
) -> jax.Array:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import gmm  # imported late: takes 0.1 s

    return gmm(
        rows_Nx,
        matrices_Ex,
        sizes,
        rows_Nx.dtype,
        _tile(rows_Nx),
        transpose_rhs=is_transposed,
        interpret=interpret,
    )


def _tile(rows_Nx: jax.Array) -> tuple[int, int, int]:
    rows, inputs, outputs = TILE
    return math.gcd(len(rows_Nx), rows), inputs, outputs


def _with_residuals(
    rows_Nx: jax.Array, matrices_Ex: jax.Array, sizes: jax.Array, interpret: bool
) -> tuple[jax.Array, tuple[jax.Array, jax.Array, jax.Array]]:
    product_Nx = _product(rows_Nx, matrices_Ex, sizes, interpret)
    return product_Nx, (rows_Nx, matrices_Ex, sizes)


def _gradients(
    interpret: bool, residuals: tuple[jax.Array, jax.Array, jax.Array], gradient_Nx: jax.Array
) -> tuple[jax.Array, jax.Array, None]:
    from jax.experimental.pallas.ops.tpu.megablox.gmm import tgmm

    rows_Nx, matrices_Ex, sizes = residuals
    of_rows_Nx = _product(gradient_Nx, matrices_Ex, sizes, interpret, is_transposed=True)
    of_matrices_Ex = tgmm(
        rows_Nx.swapaxes(0, 1),
        gradient_Nx,
        sizes,
        matrices_Ex.dtype,
        _tile(rows_Nx),
        num_actual_groups=len(matrices_Ex),
        interpret=interpret,
    )
    return of_rows_Nx, of_matrices_Ex, None


_of_tiles.defvjp(_with_residuals, _gradients)

KINDS: dict[MoEKind, GroupedProduct] = {
    "ragged": by_xla, "megablox": by_kernel, "megablox_exchange": by_kernel,
}  # fmt: skip
"""The products of each method of the plan's `moe` that has grouped ones."""
