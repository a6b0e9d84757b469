"""Attention on TPUs with JAX's splash kernel: block by block, without (S, S) scores in HBM.

The letters of dims are those of trainer/model/__init__.py.

References:
    FlashAttention: https://arxiv.org/abs/2205.14135
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental.pallas.ops.tpu import splash_attention
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from trainer.contract.planning import attention as planned
from trainer.data.packing import in_order_of_chunks
from trainer.model.attention_kernels import KERNEL_RESULT
from trainer.model.sharding import batch_axes


def attend(
    segments_BS: jax.Array,
    window: int | None = None,
    softcap: float | None = None,
    scale: float | None = None,
    chunks: int = 1,
    *,
    interpret: bool = False,
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array]:
    """Returns causal attention inside the segments and the window.

    trainer/model/attention_kernels.py has the shapes. `interpret` computes without a TPU, slowly.
    The kernel skips what the mask leaves out, so `chunks` decides how much each device computes.
    """

    def whole(query_BSHh: jax.Array, key_BWKh: jax.Array, value_BWKv: jax.Array) -> jax.Array:
        mesh = jax.sharding.get_abstract_mesh()
        # Along `context`, each device has chunks of the queries, or whole sequences of fewer heads.
        by_head, by_position = ("tensor",), ("context",)
        if chunks == 1:
            by_head, by_position = ("tensor", "context"), ()
        shards = [
            1 if mesh.empty else math.prod(mesh.shape[axis] for axis in axes)
            for axes in (by_head, by_position)
        ]
        length, heads = query_BSHh.shape[1:3]
        attend_on_device = partial(_attend_on_device, chunks)
        scaled_BSHh = query_BSHh * (scale or query_BSHh.shape[-1] ** -0.5)
        scaled_BSHh, key_BWKh = _in_whole_vectors(scaled_BSHh), _in_whole_vectors(key_BWKh)
        width = key_BWKh.shape[-1] + value_BWKv.shape[-1]
        sizes = block_sizes(length, width, window, max(shards[1], chunks))
        kernel = make_kernel(length, heads, sizes, window, softcap, shards, chunks, interpret)
        arrays = (scaled_BSHh, key_BWKh, value_BWKv, segments_BS, segments_BS)
        if mesh.empty:
            return attend_on_device(kernel, *arrays)
        # The compiler cannot split a kernel by itself. Its masks lie the same way in a group of
        # devices, where a mesh axis is manual.
        automatic = AbstractMesh(mesh.axis_sizes, mesh.axis_names)
        masks = kernel.manual_sharding_spec(
            NamedSharding(automatic, PartitionSpec(by_head, by_position))
        )
        rows = batch_axes()
        queries, keys = (PartitionSpec(rows, axes, by_head) for axes in (by_position, None))
        split = jax.shard_map(
            attend_on_device,
            in_specs=(
                masks,
                queries,
                keys,
                keys,
                PartitionSpec(rows, by_position),
                PartitionSpec(rows),
            ),
            out_specs=queries,
            check_vma=False,
        )
        return split(kernel, *arrays)

    return whole


def _in_whole_vectors(x_BSHh: jax.Array) -> jax.Array:
    """Pads queries and keys with zeros, which change no score, to whole vectors of a TPU."""
    missing = -x_BSHh.shape[-1] % planned.TPU_LANES
    return jnp.pad(x_BSHh, ((0, 0), (0, 0), (0, 0), (0, missing))) if missing else x_BSHh


def _attend_on_device(
    chunks: int,
    kernel: Callable[..., Any],
    query_BSHh: jax.Array,
    key_BWKh: jax.Array,
    value_BWKv: jax.Array,
    segments_BS: jax.Array,
    segments_BW: jax.Array,
) -> jax.Array:
    """Computes attention for the rows, positions and heads of one device."""
    seen = (_in_order(x_BWx, chunks) for x_BWx in (key_BWKh, value_BWKv))
    by_head = (x.swapaxes(1, 2) for x in (query_BSHh, *seen))
    segments = splash_attention.SegmentIds(segments_BS, _in_order(segments_BW, chunks))
    return jax.vmap(kernel)(*by_head, segments).swapaxes(1, 2)


def _in_order(x_BWx: jax.Array, chunks: int) -> jax.Array:
    """Returns positions in the order of the sequence: the early chunks, then the late ones."""
    if chunks == 1:
        return x_BWx
    pairs = x_BWx.reshape(x_BWx.shape[0], chunks // 2, 2, -1, *x_BWx.shape[2:])
    return jnp.concatenate((pairs[:, :, 0], pairs[:, ::-1, 1]), axis=1).reshape(x_BWx.shape)


def block_sizes(
    length: int, width: int, window: int | None, query_parts: int
) -> splash_attention.BlockSizes:
    """Returns the blocks of the kernels for `length` positions of keys and values `width` wide.

    `query_parts` divide the queries.
    """
    query, key = (math.gcd(n, planned.SPLASH_BLOCK) for n in (length // query_parts, length))
    part = planned.splash_part(length, width, window)
    return splash_attention.BlockSizes(
        block_q=query,
        block_kv=key,
        block_q_dkv=query,
        block_kv_dkv=part or key,
        block_kv_dkv_compute=key,
        block_q_dq=None if part else query,
        block_kv_dq=None if part else key,
        use_fused_bwd_kernel=part is not None,
    )


def make_kernel(
    length: int,
    heads: int,
    sizes: splash_attention.BlockSizes,
    window: int | None,
    softcap: float | None,
    shards: Sequence[int],
    chunks: int,
    interpret: bool,
) -> Any:
    """Returns the kernel for all heads and positions; `shards` splits heads and queries.

    Queries are in the order of the chunks, keys in that of the sequence.
    """
    head_shards, query_shards = shards
    mask = splash_attention.CausalMask((length, length))
    if window is not None:
        mask = splash_attention.LocalMask((length, length), (window - 1, 0), 0)
    mask.q_sequence = in_order_of_chunks(mask.q_sequence, chunks)
    return splash_attention.make_splash_mha(
        splash_attention.MultiHeadMask([mask] * heads),
        attn_logits_soft_cap=softcap,
        head_shards=head_shards,
        q_seq_shards=query_shards,
        block_sizes=sizes,
        residual_checkpoint_name=KERNEL_RESULT,
        interpret=interpret,
    )
