"""Which position looks at which, and how that is computed."""

from collections.abc import Callable

import jax
import jax.numpy as jnp

Attend = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""(query (B, S, H, h), key and value (B, S, K, h)) -> (B, S, H, h)."""


def attend(kind: str, segments_BS: jax.Array) -> Attend:
    """Causal attention inside the segments, by the kind that the plan names."""
    if kind == "splash":
        from trainer.model import splash  # late: its libraries take 0.4 s

        return splash.attend(segments_BS)
    mask_B1SS = _causal_mask(segments_BS)

    def plain(query_BSHh: jax.Array, key_BSKh: jax.Array, value_BSKh: jax.Array) -> jax.Array:
        return jax.nn.dot_product_attention(query_BSHh, key_BSKh, value_BSKh, mask=mask_B1SS)

    return plain


def _causal_mask(segments_BS: jax.Array) -> jax.Array:
    """(B, 1, S, S): position i sees j <= i of its own segment."""
    length = segments_BS.shape[1]
    earlier_SS = jnp.tril(jnp.ones((length, length), bool))
    same_BSS = segments_BS[:, :, None] == segments_BS[:, None, :]
    return (same_BSS & earlier_SS)[:, None]
