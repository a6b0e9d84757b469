"""Attention masks, the choice of a kernel, the reference kernel and the one for CPU devices.

The letters of dims are those of trainer/model/__init__.py.

References:
    Scaled dot products: section 3.2.1 of https://arxiv.org/abs/1706.03762
    Sliding window: https://arxiv.org/abs/2004.05150, https://arxiv.org/abs/2310.06825
    Soft cap of logits (Gemma 2): https://arxiv.org/abs/2408.00118
    Attention sinks (gpt-oss): section 2.2 of https://arxiv.org/abs/2508.10925
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from trainer.contract.config.model import Model
from trainer.model import gpu_attention
from trainer.model.layers import yarn_size

Attend = Callable[..., jax.Array]
"""Function (query (B, S, H, h), key (B, W, K, h), value (B, W, K, v)) -> (B, S, H, v).

Those of the reference and for CPU devices have another argument, the heads' sinks (H,) or None.
"""
KERNEL_RESULT = "attention_kernel"
"""Checkpoint name of what the TPU's kernel returns, and of what its gradients need besides."""
LARGEST_BLOCKS, LEAST_BLOCK = 4, 128
"""Largest number of query blocks on CPU devices, and their least number of positions. Each block is
compiled by itself."""


def attend(
    kind: str,
    segments_BS: jax.Array,
    positions_BS: jax.Array,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    chunks: int = 1,
) -> Attend:
    """Returns causal attention inside the segments and the window.

    `kind` is the plan's, or `blocks` on CPU devices. `chunks` are the plan's. `positions_BS` count
    from the start of each segment. `window` is the number of positions that each one attends to,
    itself included; None: all earlier ones. `softcap` bounds the scores; None: no bound. `scale`
    multiplies products of queries and keys; None: 1 / sqrt(h).
    """
    if kind == "splash":
        from trainer.model import splash_attention  # imported late: takes 0.4 s

        return splash_attention.attend(segments_BS, window, softcap, scale, chunks)
    if kind in ("cudnn", "cudnn_packed", "triton"):
        kernel = gpu_attention.attend(kind, segments_BS, window, scale)
        if kernel is not None:
            return kernel
    mask_B1SS = _causal_mask(segments_BS, positions_BS, window)
    if kind == "blocks":
        count = query_blocks(segments_BS.shape[1]) if chunks == 1 else 1
        return block_attention(mask_B1SS, softcap, scale, count)
    return reference_attention(mask_B1SS, softcap, scale)


def score_scale(model: Model) -> float | None:
    """Returns the factor of attention scores; None: 1 / sqrt(h)."""
    scaling = model.rope_scaling
    if scaling is not None and scaling.mscale is not None:
        size = yarn_size(scaling.factor, scaling.mscale)
        return size**2 * (model.query_scale_dim or model.head_dim) ** -0.5
    return None if model.query_scale_dim is None else model.query_scale_dim**-0.5


def reference_attention(
    mask_B1SW: jax.Array, softcap: float | None, scale: float | None = None
) -> Attend:
    """Returns attention of each query to the keys in its mask, with scores as whole arrays.

    The mask is (B, 1, S, W), True where a query attends to a key. Scores are computed in float32;
    `softcap` and `scale` are those of `attend`. The result has the dtype of the values.
    """

    def whole(
        query_BSHh: jax.Array,
        key_BWKh: jax.Array,
        value_BWKv: jax.Array,
        sinks_H: jax.Array | None = None,
    ) -> jax.Array:
        if softcap is None and sinks_H is None and key_BWKh.shape == value_BWKv.shape:
            return jax.nn.dot_product_attention(
                query_BSHh, key_BWKh, value_BWKv, mask=mask_B1SW, scale=scale
            )
        batch, length, heads, head_dim = query_BSHh.shape
        query_BSKgh = query_BSHh.reshape(batch, length, key_BWKh.shape[2], -1, head_dim)
        scores_BKgSW = jnp.einsum(
            "bskgh,bwkh->bkgsw", query_BSKgh, key_BWKh, preferred_element_type=jnp.float32
        )
        scores_BKgSW = softcapped(scores_BKgSW * (scale or head_dim**-0.5), softcap)
        scores_BKgSW = jnp.where(mask_B1SW[:, :, None], scores_BKgSW, -jnp.inf)
        weights_BKgSW = _softmax(scores_BKgSW, sinks_H).astype(value_BWKv.dtype)
        mixed_BSKgv = jnp.einsum("bkgsw,bwkv->bskgv", weights_BKgSW, value_BWKv)
        return mixed_BSKgv.reshape(batch, length, heads, -1)

    return whole


def query_blocks(length: int) -> int:
    """Returns the number of query blocks of a sequence whose positions are in order."""
    counts = range(LARGEST_BLOCKS, 1, -1)
    fitting = (n for n in counts if length % n == 0 and length // n >= LEAST_BLOCK)
    return next(fitting, 1)


def block_attention(
    mask_B1SS: jax.Array, softcap: float | None, scale: float | None, count: int
) -> Attend:
    """Returns attention as `reference_attention` does, in a layout for the products of XLA:CPU.

    XLA:CPU copies the operands of a product into the order that it multiplies in. Here that is the
    order of all scores and their gradients. Each of `count` blocks of queries multiplies only the
    keys up to its end, so positions must be in order if there are several. The weights are
    normalized after the product with the values, which is smaller than they are.
    """

    def blocks(
        query_BSHh: jax.Array,
        key_BSKh: jax.Array,
        value_BSKv: jax.Array,
        sinks_H: jax.Array | None = None,
    ) -> jax.Array:
        rows, length, heads, head_dim = query_BSHh.shape
        query_BSHh = query_BSHh * jnp.asarray(scale or head_dim**-0.5, query_BSHh.dtype)
        query_BSKgh = query_BSHh.reshape(rows, length, key_BSKh.shape[2], -1, head_dim)
        query_BKgSh = query_BSKgh.transpose(0, 2, 3, 1, 4)
        key_BKSh, value_BKSv = (x.swapaxes(1, 2) for x in (key_BSKh, value_BSKv))
        size = length // count
        mixed = [
            _block(
                query_BKgSh[:, :, :, end - size : end],
                key_BKSh[:, :, :end],
                value_BKSv[:, :, :end],
                mask_B1SS[:, :, None, end - size : end, :end],
                softcap,
                sinks_H,
            )
            for end in range(size, length + 1, size)
        ]
        mixed_BSKgv = jnp.concatenate(mixed, axis=3).transpose(0, 3, 1, 2, 4)
        return mixed_BSKgv.reshape(rows, length, heads, -1)

    return blocks


def _block(
    query_BKgSh: jax.Array,
    key_BKWh: jax.Array,
    value_BKWv: jax.Array,
    mask_B11SW: jax.Array,
    softcap: float | None,
    sinks_H: jax.Array | None,
) -> jax.Array:
    """Returns the mixed values (B, K, g, S, v) of scaled queries."""
    scores_BKgSW = jnp.einsum(
        "bkgsh,bkwh->bkgsw", query_BKgSh, key_BKWh, preferred_element_type=jnp.float32
    )
    scores_BKgSW = jnp.where(mask_B11SW, softcapped(scores_BKgSW, softcap), -jnp.inf)
    weights_BKgSW, total_BKgS1 = _unnormalized(scores_BKgSW, sinks_H)
    mixed_BKgSv = jnp.einsum(
        "bkgsw,bkwv->bkgsv",
        weights_BKgSW.astype(value_BKWv.dtype),
        value_BKWv,
        preferred_element_type=jnp.float32,
    )
    return (mixed_BKgSv / total_BKgS1).astype(value_BKWv.dtype)


def _softmax(scores_BKgSW: jax.Array, sinks_H: jax.Array | None) -> jax.Array:
    """Returns the softmax over W; with sinks, each head's sink takes a share and has no value."""
    if sinks_H is None:
        return jax.nn.softmax(scores_BKgSW)
    weights_BKgSW, total_BKgS1 = _unnormalized(scores_BKgSW, sinks_H)
    return weights_BKgSW / total_BKgS1


def _unnormalized(
    scores_BKgSW: jax.Array, sinks_H: jax.Array | None
) -> tuple[jax.Array, jax.Array]:
    """Returns the exponentials of scores, and their sums over W with those of the sinks."""
    largest = jnp.max(scores_BKgSW, axis=-1, keepdims=True)
    if sinks_H is None:
        weights_BKgSW = jnp.exp(scores_BKgSW - jax.lax.stop_gradient(largest))
        return weights_BKgSW, jnp.sum(weights_BKgSW, axis=-1, keepdims=True)
    sinks_Kg11 = sinks_H.astype(jnp.float32).reshape(*scores_BKgSW.shape[1:3], 1, 1)
    largest = jax.lax.stop_gradient(jnp.maximum(largest, sinks_Kg11))
    weights_BKgSW = jnp.exp(scores_BKgSW - largest)
    total = jnp.sum(weights_BKgSW, axis=-1, keepdims=True) + jnp.exp(sinks_Kg11 - largest)
    return weights_BKgSW, total


def softcapped(x: jax.Array, cap: float | None) -> jax.Array:
    """Returns cap * tanh(x / cap), which is between -cap and cap; `x` itself without a cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def _causal_mask(segments_BS: jax.Array, positions_BS: jax.Array, window: int | None) -> jax.Array:
    """Returns (B, 1, S, S): a position attends to earlier ones in its segment and the window."""
    seen_BSS = segments_BS[:, :, None] == segments_BS[:, None, :]
    distance_BSS = positions_BS[:, :, None] - positions_BS[:, None, :]
    seen_BSS &= distance_BSS >= 0
    if window is not None:
        seen_BSS &= distance_BSS < window
    return seen_BSS[:, None]
