"""Attention on TPUs by JAX's splash kernel: block by block, no (S, S) scores in HBM."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import PartitionSpec

from trainer.spec import rules

LARGEST_BLOCK = 512
"""Positions that the kernel works on at once; blocks of this size fit the VMEM of every TPU."""


def attend(
    segments_BS: jax.Array,
    window: int | None = None,
    soft_cap: float | None = None,
    *,
    interpret: bool = False,
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """Causal attention inside the segments; see trainer/model/attend.py for the shapes.

    `interpret` computes it without a TPU, slowly.
    """
    own = partial(_own, window=window, soft_cap=soft_cap, interpret=interpret)

    def whole(query_BSHh: jax.Array, key_BSKh: jax.Array, value_BSKh: jax.Array) -> jax.Array:
        mesh = jax.sharding.get_abstract_mesh()
        if mesh.empty:
            return own(query_BSHh, key_BSKh, value_BSKh, segments_BS)
        # The compiler cannot split a kernel by itself.
        rows = PartitionSpec(rules.BATCH_AXES)
        heads = PartitionSpec(rules.BATCH_AXES, None, "tensor")
        split = jax.shard_map(
            own,
            in_specs=(heads, heads, heads, rows),
            out_specs=heads,
            check_vma=False,
        )
        return split(query_BSHh, key_BSKh, value_BSKh, segments_BS)

    return whole


def _own(
    query_BSHh: jax.Array,
    key_BSKh: jax.Array,
    value_BSKh: jax.Array,
    segments_BS: jax.Array,
    *,
    window: int | None,
    soft_cap: float | None,
    interpret: bool,
) -> jax.Array:
    """The rows and heads of one device."""
    length, heads, head_dim = query_BSHh.shape[1:]
    kernel = _kernel(length, heads, window, soft_cap, interpret)
    scaled_BSHh = query_BSHh * head_dim**-0.5
    by_head = (x.swapaxes(1, 2) for x in (scaled_BSHh, key_BSKh, value_BSKh))
    segments = splash_attention.SegmentIds(segments_BS, segments_BS)
    return jax.vmap(kernel)(*by_head, segments).swapaxes(1, 2)


def _kernel(
    length: int, heads: int, window: int | None, soft_cap: float | None, interpret: bool
) -> Callable[..., Any]:
    block = math.gcd(length, LARGEST_BLOCK)
    sizes = splash_attention.BlockSizes(
        block_q=block,
        block_kv=block,
        block_q_dkv=block,
        block_kv_dkv=block,
        block_q_dq=block,
        block_kv_dq=block,
    )
    seen = splash_attention.CausalMask((length, length))
    if window is not None:
        seen = splash_attention.LocalMask((length, length), (window - 1, 0), 0)
    return splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([seen] * heads),
        attn_logits_soft_cap=soft_cap,
        head_shards=1,
        q_seq_shards=1,
        block_sizes=sizes,
        interpret=interpret,
    )
