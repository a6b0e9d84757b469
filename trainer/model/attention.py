"""Causal grouped-query attention, for whole sequences and for one position at a time.

The letters of dims are those of trainer/model/__init__.py.
"""

import math

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.model import Model
from trainer.contract.config.model_parts import RopeScaling
from trainer.model.attention_kernels import Attend, reference_attention, score_scale
from trainer.model.layers import Norm, Projection, rotate
from trainer.model.remat import named
from trainer.model.sharding import constrain, whole_sequences, whole_sequences_of_heads

KeyValue = tuple[jax.Array, jax.Array]


class Attention(nnx.Module):
    """Grouped-query attention: H / K query heads share one key/value head.

    Maps (B, S, D) to (B, S, D). Queries and keys are optionally normalized, per head or over all
    heads (`qk_norm`), then rotated by their positions. `decode` extends a cache of keys and values
    (B, W, K, h) by one position. `chunks` are those of the plan.

    References:
        Grouped-query attention: https://arxiv.org/abs/2305.13245
        Query-key normalization: https://arxiv.org/abs/2010.04245
        With the model's own kind of norm, as here: Qwen3, https://arxiv.org/abs/2505.09388
        Attention sinks: gpt-oss, section 2.2, https://arxiv.org/abs/2508.10925
        Over all heads: OLMo 2, section 3.3, https://arxiv.org/abs/2501.00656
    """

    def __init__(self, rngs: nnx.Rngs, model: Model, chunks: int):
        width, heads, kv_heads, head = model.d_model, model.heads, model.kv_heads, model.head_dim
        self.model, self.chunks = model, chunks
        key_value = ((width, kv_heads, head), ("embed", "kv_heads", "head_dim"))
        bias, precision = model.biases != "none", model.precision
        query = ((width, heads, head), ("embed", "heads", "head_dim"))
        self.query = Projection(rngs, *query, bias=bias, precision=precision)
        self.key = Projection(rngs, *key_value, bias=bias, precision=precision)
        self.value = Projection(rngs, *key_value, bias=bias, precision=precision)
        self.output = Projection(
            rngs,
            (heads, head, width),
            ("heads", "head_dim", "embed"),
            contracted=2,
            gain=residual_gain(model),
            bias=model.biases == "all",
            precision=precision,
        )
        if model.attention_sinks:
            self.sinks = nnx.Param(jnp.zeros((heads,)), out_sharding=("heads",))
        if model.qk_norm == "full":
            self.query_norm, self.key_norm = (
                Norm(model, count * head, dims=2) for count in (heads, kv_heads)
            )
        elif model.qk_norm:
            self.query_norm, self.key_norm = Norm(model, head), Norm(model, head)

    def __call__(
        self, x_BSD: jax.Array, positions_BS: jax.Array, attend: Attend, window: int | None
    ) -> jax.Array:
        """Returns the output (B, S, D).

        `positions_BS` count from the start of each document. `attend` determines which positions
        each one attends to: see attention_kernels.py. `window` is the layer's sliding window.
        """
        arrays = with_all_keys(self.chunks, *self._project(x_BSD, positions_BS, window))
        return self._mix(*arrays, attend)

    def decode(
        self,
        x_B1D: jax.Array,
        position: jax.Array,
        mask_B11W: jax.Array,
        cache_BWKh: KeyValue,
        window: int | None,
    ) -> tuple[jax.Array, KeyValue]:
        """Returns the output (B, 1, D) at `position`, and the cache with its key and value.

        `position` is a scalar, the same for all rows. `mask_B11W` is True where a key is visible.
        `window` is the layer's sliding window.
        """
        positions_B1 = jnp.full(x_B1D.shape[:2], position)
        query_B1Hh, *new = self._project(x_B1D, positions_B1, window)
        key_BWKh, value_BWKh = (
            jax.lax.dynamic_update_slice_in_dim(old, one, position, axis=1)
            for old, one in zip(cache_BWKh, new, strict=True)
        )
        model = self.model
        attend = reference_attention(mask_B11W, model.attn_logit_softcap, score_scale(model))
        return self._mix(query_B1Hh, key_BWKh, value_BWKh, attend), (key_BWKh, value_BWKh)

    def _project(
        self, x_BSD: jax.Array, positions_BS: jax.Array, window: int | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        query_BSHh = constrain(self.query(x_BSD), "batch", "sequence", "heads", None)
        key_BSKh = constrain(self.key(x_BSD), "batch", "sequence", "kv_heads", None)
        value_BSKh = constrain(self.value(x_BSD), "batch", "sequence", "kv_heads", None)
        value_BSKh = named(value_BSKh, "qkv")
        if self.model.qk_norm:
            # The gradients of these norms need the products, that of the rotation does not.
            query_BSHh, key_BSKh = named(query_BSHh, "qkv"), named(key_BSKh, "qkv")
            query_BSHh, key_BSKh = self.query_norm(query_BSHh), self.key_norm(key_BSKh)
        if self.model.positions == "rotary":
            frequencies = rotary_frequencies(self.model, window)
            query_BSHh, key_BSKh = (
                rotate(x, positions_BS, *frequencies) for x in (query_BSHh, key_BSKh)
            )
        if not self.model.qk_norm:
            query_BSHh, key_BSKh = named(query_BSHh, "qkv"), named(key_BSKh, "qkv")
        return query_BSHh, key_BSKh, value_BSKh

    def _mix(
        self, query_BSHh: jax.Array, key_BWKh: jax.Array, value_BWKh: jax.Array, attend: Attend
    ) -> jax.Array:
        heads = query_BSHh.shape[2]
        key, value = (_for_heads(x_BWKh, heads) for x_BWKh in (key_BWKh, value_BWKh))
        sinks = (self.sinks[...],) if self.model.attention_sinks else ()
        mixed_BSHh = attend(query_BSHh, key, value, *sinks)
        return self.output(constrain(mixed_BSHh, "batch", "sequence", "heads", None))


def with_all_keys(
    chunks: int, query_BSHh: jax.Array, key_BSKh: jax.Array, value_BSKv: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns queries, keys and values, where each query is with all the keys that it may see.

    Under a `context` axis, devices gather keys and values, or exchange heads if `chunks` is 1.
    """
    if chunks == 1:
        query_BSHh = whole_sequences_of_heads(query_BSHh)
        return query_BSHh, whole_sequences_of_heads(key_BSKh), whole_sequences_of_heads(value_BSKv)
    kv_heads = "kv_heads"
    return query_BSHh, whole_sequences(key_BSKh, kv_heads), whole_sequences(value_BSKv, kv_heads)


def cache_widths(model: Model) -> tuple[tuple[int, int], tuple[int, int]]:
    """Returns the number and the width of the heads in each array of a decoding cache."""
    if latent := model.latent_attention:
        return (1, latent.rank), (1, latent.rotary_dim)
    return (model.kv_heads, model.head_dim), (model.kv_heads, model.head_dim)


def rotary_frequencies(model: Model, window: int | None) -> tuple[float, RopeScaling | None]:
    """Returns the base of a layer's rotary frequencies and their scaling, by its sliding window.

    References:
        Two bases: Gemma 3, section 2, https://arxiv.org/abs/2503.19786
    """
    if window is not None and model.local_rope_theta is not None:
        return model.local_rope_theta, None
    return model.rope_theta, model.rope_scaling


def residual_gain(model: Model) -> float:
    """Returns the gain of initial output kernels, so that all layers add up to the size of one.

    It is 1 / sqrt(2 L): each layer adds two products to the residual stream.

    References:
        GPT-2 (Radford et al., "Language models are unsupervised multitask learners", 2019),
        section 2.3.
    """
    return 1 / math.sqrt(2 * model.layers)


def _for_heads(x_BSKh: jax.Array, heads: int) -> jax.Array:
    """Repeats each key/value head for its query heads if the tensor axis splits only the latter.

    Grouped attention needs whole groups on a device. Key/value heads that do not divide by the
    tensor axis are replicated; only the repeated heads can be split like the queries.
    """
    kv_heads = x_BSKh.shape[2]
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or kv_heads % mesh.shape["tensor"] == 0:
        return x_BSKh
    repeated = jnp.repeat(x_BSKh, heads // kv_heads, axis=2)
    if mesh.shape["context"] > 1:
        return whole_sequences(repeated, "heads")
    return constrain(repeated, "batch", None, "heads", None)
