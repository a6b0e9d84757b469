"""Attention on GPUs: cuDNN's kernel, or JAX's Triton kernel for packed documents.

Both work block by block, without (S, S) scores or masks in memory. The letters of dims are those of
trainer/model/__init__.py.

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

from trainer.contract.planning import sharding_rules

FORWARD_PASSES = ("dot_product_attention_fwd", "mha_forward")
"""First words of the names of both kernels' forward passes, in JAX's programs."""


def attend(
    kind: str, segments_BS: jax.Array, window: int | None, scale: float | None
) -> Callable[[jax.Array, jax.Array, jax.Array], jax.Array] | None:
    """Returns causal attention inside the window and, with `triton`, inside the segments.

    trainer/model/attention_kernels.py has the shapes. With `cudnn`, each row is one segment. None:
    this version of JAX does not have the kernel any more.
    """
    kernel = partial(with_cudnn, window=window)
    if kind == "triton":
        module = _triton_kernels()
        if module is None:
            return None
        kernel = partial(with_triton, module)

    def whole(query_BSHh: jax.Array, key_BWKh: jax.Array, value_BWKh: jax.Array) -> jax.Array:
        on_device = partial(kernel, scale=scale or query_BSHh.shape[-1] ** -0.5)
        arrays = (query_BSHh, key_BWKh, value_BWKh, segments_BS)
        if jax.sharding.get_abstract_mesh().empty:
            return on_device(*arrays)
        # The compiler cannot split a kernel by itself. Each device has whole sequences.
        rows = sharding_rules.BATCH_AXES
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
    group = query_BSHh.shape[2] // key_BWKh.shape[2]
    key_BWHh, value_BWHh = (jnp.repeat(x, group, axis=2) for x in (key_BWKh, value_BWKh))
    return kernels.mha(
        query_BSHh, key_BWHh, value_BWHh, segments_BS, scale, causal=True, interpret=interpret
    )


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
