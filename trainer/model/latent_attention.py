"""Multi-head latent attention: keys and values of all heads are products of one narrow latent.

The letters of dims are those of trainer/model/__init__.py.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from trainer.contract.config.model import Model
from trainer.model.attention import KeyValue, residual_gain, rotary_frequencies, with_all_keys
from trainer.model.attention_kernels import Attend, reference_attention, score_scale
from trainer.model.layers import Norm, Projection, rotate
from trainer.model.remat import named
from trainer.model.sharding import constrain

INTO_LATENT, OF_HEADS = ("embed", "latent"), ("embed", "heads", "head_dim")


class LatentAttention(nnx.Module):
    """Attention whose keys and values are expanded from a latent (B, S, r) of the stream.

    Maps (B, S, D) to (B, S, D). Only a part of each query and key is rotated by its position, and
    all heads share that part of the keys. Queries can have a latent of their own. Both latents are
    normalized. `decode` extends a cache of latents (B, W, 1, r) and of rotated keys (B, W, 1, o).
    `chunks` are those of the plan.

    References:
        DeepSeek-V2, section 2.1, https://arxiv.org/abs/2405.04434
    """

    def __init__(self, rngs: nnx.Rngs, model: Model, chunks: int):
        latent, width, heads = model.latent_attention, model.d_model, model.heads
        assert latent
        self.model, self.latent, self.chunks = model, latent, chunks
        precision = model.precision
        if latent.query_rank is None:
            whole = (width, heads, model.head_dim)
            self.query = Projection(rngs, whole, OF_HEADS, precision=precision)
        else:
            down, up = (width, latent.query_rank), (latent.query_rank, heads, model.head_dim)
            self.query_down = Projection(rngs, down, INTO_LATENT, precision=precision)
            self.query_norm = Norm(model, latent.query_rank)
            self.query_up = Projection(rngs, up, OF_HEADS, precision=precision)
        down = (width, latent.rank + latent.rotary_dim)
        self.key_value_down = Projection(rngs, down, INTO_LATENT, precision=precision)
        self.key_value_norm = Norm(model, latent.rank)
        up = (latent.rank, heads, latent.plain_dim + latent.value_dim)
        self.key_value_up = Projection(rngs, up, OF_HEADS, precision=precision)
        self.output = Projection(
            rngs,
            (heads, latent.value_dim, width),
            ("heads", "head_dim", "embed"),
            contracted=2,
            gain=residual_gain(model),
            precision=precision,
        )

    def __call__(
        self, x_BSD: jax.Array, positions_BS: jax.Array, attend: Attend, window: int | None
    ) -> jax.Array:
        """Returns the output (B, S, D); the arguments are those of `Attention`."""
        plain_BSHp, rotary_BSHo = self._queries(x_BSD, positions_BS, window)
        query_BSHh = jnp.concatenate([plain_BSHp, rotary_BSHo], axis=-1)
        key_BSHh, value_BSHv = self._expanded(*self._latents(x_BSD, positions_BS, window))
        arrays = with_all_keys(self.chunks, query_BSHh, key_BSHh, value_BSHv)
        return self._projected(attend(*arrays))

    def decode(
        self,
        x_B1D: jax.Array,
        position: jax.Array,
        mask_B11W: jax.Array,
        cache: KeyValue,
        window: int | None,
    ) -> tuple[jax.Array, KeyValue]:
        """Returns the output (B, 1, D) at `position`, and the cache with its latent and key.

        Latents take the place of keys and values, which are never expanded: the matrix of the keys
        is applied to the query, and that of the values to the mixed latent. The arguments are those
        of `Attention`.
        """
        positions_B1 = jnp.full(x_B1D.shape[:2], position)
        plain_B1Hp, rotary_B1Ho = self._queries(x_B1D, positions_B1, window)
        latent_BW1r, rotary_BW1o = (
            jax.lax.dynamic_update_slice_in_dim(old, one, position, axis=1)
            for old, one in zip(cache, self._latents(x_B1D, positions_B1, window), strict=True)
        )
        # Of the identity, so that the kernel includes its adapter.
        identity_1rr = jnp.eye(self.latent.rank, dtype=x_B1D.dtype)[None]
        key_rHp, value_rHv = self._of_keys_and_values(self.key_value_up(identity_1rr)[0])
        query_B1Hr = jnp.einsum("bshp,rhp->bshr", plain_B1Hp, key_rHp)
        query_B1Hx = jnp.concatenate([query_B1Hr, rotary_B1Ho], axis=-1)
        key_BW1x = jnp.concatenate([latent_BW1r, rotary_BW1o], axis=-1)
        model = self.model
        scale = score_scale(model) or model.head_dim**-0.5
        attend = reference_attention(mask_B11W, model.attn_logit_softcap, scale)
        mixed_B1Hr = attend(query_B1Hx, key_BW1x, latent_BW1r)
        mixed_B1Hv = jnp.einsum("bshr,rhv->bshv", mixed_B1Hr, value_rHv)
        return self._projected(mixed_B1Hv), (latent_BW1r, rotary_BW1o)

    def _queries(
        self, x_BSD: jax.Array, positions_BS: jax.Array, window: int | None
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the queries' plain and rotated parts, (B, S, H, p) and (B, S, H, o)."""
        if self.latent.query_rank is None:
            query_BSHh = self.query(x_BSD)
        else:
            query_BSHh = self.query_up(self.query_norm(self.query_down(x_BSD)))
        query_BSHh = named(constrain(query_BSHh, "batch", "sequence", "heads", None), "qkv")
        plain_BSHp, rotary_BSHo = jnp.split(query_BSHh, [self.latent.plain_dim], axis=-1)
        return plain_BSHp, self._rotated(rotary_BSHo, positions_BS, window)

    def _latents(
        self, x_BSD: jax.Array, positions_BS: jax.Array, window: int | None
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the latents and the rotated keys as those of one head, with a dim of size 1."""
        both_BSx = self.key_value_down(x_BSD)
        latent_BSr, rotary_BSo = jnp.split(both_BSx, [self.latent.rank], axis=-1)
        latent_BS1r = self.key_value_norm(latent_BSr)[:, :, None]
        return latent_BS1r, self._rotated(rotary_BSo[:, :, None], positions_BS, window)

    def _expanded(
        self, latent_BS1r: jax.Array, rotary_BS1o: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the keys (B, S, H, h) and values (B, S, H, v) of all heads."""
        expanded_BSHx = self.key_value_up(latent_BS1r[:, :, 0])
        expanded_BSHx = named(constrain(expanded_BSHx, "batch", "sequence", "heads", None), "qkv")
        plain_BSHp, value_BSHv = self._of_keys_and_values(expanded_BSHx)
        shape = (*plain_BSHp.shape[:-1], self.latent.rotary_dim)
        rotary_BSHo = jnp.broadcast_to(rotary_BS1o, shape)
        return jnp.concatenate([plain_BSHp, rotary_BSHo], axis=-1), value_BSHv

    def _of_keys_and_values(self, x_xHx: jax.Array) -> list[jax.Array]:
        """Splits the features of heads into those of plain keys, and those of values."""
        return jnp.split(x_xHx, [self.latent.plain_dim], axis=-1)

    def _rotated(self, x_BSHo: jax.Array, positions_BS: jax.Array, window: int | None) -> jax.Array:
        """Rotates pairs of neighbouring features; the first ones of all pairs come first then."""
        halves_BSHo = jnp.concatenate([x_BSHo[..., ::2], x_BSHo[..., 1::2]], axis=-1)
        return rotate(halves_BSHo, positions_BS, *rotary_frequencies(self.model, window))

    def _projected(self, mixed_BSHv: jax.Array) -> jax.Array:
        return self.output(constrain(mixed_BSHv, "batch", "sequence", "heads", None))
