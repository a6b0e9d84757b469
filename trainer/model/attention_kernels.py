"""Which position looks at which, and how that is computed."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(query (B, S, H, h), key and value (B, S, K, h)) -> (B, S, H, h)."""


def attend(
    kind: str, segments_BS: jax.Array, window: int | None = None, soft_cap: float | None = None
) -> Attend:
    """Causal attention inside the segments and the window, by the kind that the plan names."""
    if kind == "splash":
        from trainer.model import splash_attention  # late: its libraries take 0.4 s

        return splash_attention.attend(segments_BS, window, soft_cap)
    return reference_attention(_causal_mask(segments_BS, window), soft_cap)


def reference_attention(mask_B1SW: jax.Array, soft_cap: float | None) -> Attend:
    """Each query on the keys that the mask lets it see; scores stay below the cap."""
    if soft_cap is None:
        return partial(jax.nn.dot_product_attention, mask=mask_B1SW)

    def capped(query_BSHh: jax.Array, key_BWKh: jax.Array, value_BWKh: jax.Array) -> jax.Array:
        batch, length, heads, head_dim = query_BSHh.shape
        query_BSKgh = query_BSHh.reshape(batch, length, key_BWKh.shape[2], -1, head_dim)
        scores_BKgSW = jnp.einsum(
            "bskgh,bwkh->bkgsw", query_BSKgh, key_BWKh, preferred_element_type=jnp.float32
        )
        scores_BKgSW = soft_capped(scores_BKgSW * head_dim**-0.5, soft_cap)
        scores_BKgSW = jnp.where(mask_B1SW[:, :, None], scores_BKgSW, -jnp.inf)
        weights_BKgSW = jax.nn.softmax(scores_BKgSW).astype(value_BWKh.dtype)
        mixed_BSKgh = jnp.einsum("bkgsw,bwkh->bskgh", weights_BKgSW, value_BWKh)
        return mixed_BSKgh.reshape(batch, length, heads, head_dim)

    return capped


def soft_capped(x: jax.Array, cap: float | None) -> jax.Array:
    """Bent so that it stays between -cap and cap."""
    return x if cap is None else cap * jnp.tanh(x / cap)


def _causal_mask(segments_BS: jax.Array, window: int | None) -> jax.Array:
    """(B, 1, S, S): position i sees j <= i of its own segment, and no more than the window."""
    length = segments_BS.shape[1]
    seen_SS = jnp.tril(jnp.ones((length, length), bool))
    if window is not None:
        seen_SS &= ~jnp.tril(seen_SS, -window)
    same_BSS = segments_BS[:, :, None] == segments_BS[:, None, :]
    return (same_BSS & seen_SS)[:, None]
