"""Attention on GPUs: cuDNN's kernel, or JAX's Triton kernel for packed documents.

Both work block by block, without (S, S) scores or masks in memory. The letters of dims are those of
trainer/model/__init__.py.

Packed documents: cuDNN computes each document by itself, and has room for a fixed number in a row.
A batch that has more on a device is computed by the Triton kernel. Times of a forward and a
backward pass on an H200, with 16 rows of 4,096 positions, 20 heads of 128 elements and documents of
600 tokens on average (jax 0.11.2):

    cuDNN, room for 16 documents in a row     5.5 ms
    cuDNN, room for 64                       11.0 ms
    cuDNN, each row as one document           9.8 ms
    Triton, blocks of 64 x 64, 4 warps       19.2 ms
    Triton, JAX's default blocks             38.8 ms

References:
    FlashAttention-2: https://arxiv.org/abs/2307.08691
"""

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from trainer.contract.planning.attention import packed_documents
from trainer.model.sharding import batch_axes

WARPS = 4
FORWARD_PASSES = ("dot_product_attention_fwd", "mha_forward")
"""First words of the names of both kernels' forward passes, in JAX's programs."""


def attend(
    kind: str, segments_BS: jax.Array, window: int | None, scale: float | None
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None:
    """Returns causal attention inside the window or, unless `kind` is `cudnn`, inside the segments.

    trainer/model/attention_kernels.py has the shapes. With `cudnn`, each row is one segment. None:
    this version of JAX does not have the kernel any more.
    """
    kernel = partial(with_cudnn, window=window)
    if kind != "cudnn":
        module = _triton_kernels()
        if module is None:
            return None
        kernel = partial(with_triton, module)
    if kind == "cudnn_packed":
        kernel = partial(with_cudnn_packed, otherwise=kernel)

    def whole(query_BSHh: jax.Array, key_BWKh: jax.Array, value_BWKh: jax.Array) -> jax.Array:
        on_device = partial(kernel, scale=scale or query_BSHh.shape[-1] ** -0.5)
        arrays = (query_BSHh, key_BWKh, value_BWKh, segments_BS)
        if jax.sharding.get_abstract_mesh().empty:
            return on_device(*arrays)
        # The compiler cannot split a kernel by itself. Each device has whole sequences.
        rows = batch_axes()
        heads = PartitionSpec(rows, None, ("tensor", "context"))
        split = jax.shard_map(
            on_device,
            in_specs=(heads, heads, heads, PartitionSpec(rows)),
            out_specs=heads,
            check_vma=False,
        )
        return split(*arrays)

    return whole


def with_cudnn(
    query_BSHh: jax.Array,
    key_BWKh: jax.Array,
    value_BWKh: jax.Array,
    _: jax.Array,
    *,
    scale: float,
    window: int | None,
    implementation: Any = "cudnn",
) -> jax.Array:
    """Computes attention for the rows and heads of one device, each row as one document."""
    return jax.nn.dot_product_attention(
        query_BSHh,
        key_BWKh,
        value_BWKh,
        scale=scale,
        is_causal=True,
        local_window_size=None if window is None else (window - 1, 0),
        implementation=implementation,
    )


def with_cudnn_packed(
    query_BSHh: jax.Array,
    key_BWKh: jax.Array,
    value_BWKh: jax.Array,
    segments_BS: jax.Array,
    *,
    scale: float,
    otherwise: Callable[..., jax.Array],
) -> jax.Array:
    """Computes attention for the rows and heads of one device, document by document.

    `otherwise` computes it when a row has too many documents.
    """
    try:
        from trainer.model import private
    except ImportError:  # another version of JAX
        return otherwise(query_BSHh, key_BWKh, value_BWKh, segments_BS, scale=scale)

    room = packed_documents(segments_BS.shape[1])
    opens_BS, starts_Bb, lengths_Bd = documents(segments_BS, room)

    def packed(
        query_BSHh: jax.Array, key_BWKh: jax.Array, value_BWKh: jax.Array, _: jax.Array
    ) -> Any:
        if jax.__version_info__ < (0, 11):  # it takes keys to have as many heads as queries
            key_BWKh, value_BWKh = _ungrouped(query_BSHh, key_BWKh, value_BWKh)
        return private.dot_product_attention(
            query_BSHh,
            key_BWKh,
            value_BWKh,
            q_seqlen=lengths_Bd,
            kv_seqlen=lengths_Bd,
            q_offsets=starts_Bb,
            kv_offsets=starts_Bb,
            scale=scale,
            mask_type=private.MaskType.PADDING_CAUSAL,
        )

    has_room = jnp.max(jnp.sum(opens_BS, axis=1)) <= room
    arrays = (query_BSHh, key_BWKh, value_BWKh, segments_BS)
    return jax.lax.cond(has_room, packed, partial(otherwise, scale=scale), *arrays)


def documents(segments_BS: jax.Array, room: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns where documents open (B, S), their positions (B, room + 1) and lengths (B, room).

    A row with fewer documents has -1 in the other places, as cuDNN's attention expects.
    """
    rows, length = segments_BS.shape
    changes_BS = segments_BS[:, 1:] != segments_BS[:, :-1]
    opens_BS = jnp.concatenate([jnp.ones((rows, 1), bool), changes_BS], axis=1)
    found_Bb = jax.vmap(partial(jnp.flatnonzero, size=room + 1, fill_value=length))(opens_BS)
    starts_Bb = found_Bb.astype(jnp.int32)
    is_one_Bb = starts_Bb < length
    lengths_Bd = jnp.where(is_one_Bb[:, :-1], jnp.diff(starts_Bb), -1)
    return opens_BS, jnp.where(is_one_Bb, starts_Bb, -1), lengths_Bd


def with_triton(
    kernels: Any,
    query_BSHh: jax.Array,
    key_BWKh: jax.Array,
    value_BWKh: jax.Array,
    segments_BS: jax.Array,
    *,
    scale: float,
    interpret: bool = False,
) -> jax.Array:
    """Computes attention for the rows and heads of one device; `interpret`: without a GPU."""
    key_BWHh, value_BWHh = _ungrouped(query_BSHh, key_BWKh, value_BWKh)
    return kernels.mha(
        query_BSHh,
        key_BWHh,
        value_BWHh,
        segments_BS,
        scale,
        causal=True,
        block_sizes=kernels.BlockSizes(
            block_q=128, block_k=64, block_q_dkv=64, block_kv_dkv=64, block_q_dq=64, block_kv_dq=64
        ),
        num_warps=WARPS,
        interpret=interpret,
    )


def _ungrouped(
    query_BSHh: jax.Array, key_BWKh: jax.Array, value_BWKh: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns keys and values with a head for each head of the queries."""
    group = query_BSHh.shape[2] // key_BWKh.shape[2]
    return jnp.repeat(key_BWKh, group, axis=2), jnp.repeat(value_BWKh, group, axis=2)


def is_forward_pass(primitive: Any, *_: Any, **params: Any) -> bool:
    """Returns whether an operation is a kernel's forward pass, whose results gradients need."""
    name = params["name"] if primitive.name == "pallas_call" else primitive.name
    return name.startswith(FORWARD_PASSES)


def _triton_kernels() -> Any:
    """Returns JAX's module, or None if it is gone: jax 0.12 deprecates it for Tokamax."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            from jax.experimental.pallas.ops.gpu import attention
    except ImportError as error:
        warnings.warn(f"attention writes whole arrays of scores to memory: {error}", stacklevel=2)
        return None
    return attention
