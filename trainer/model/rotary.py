"""Rotary positions: pairs of features turned by an angle that grows with the position."""

import jax
import jax.numpy as jnp


def rotate(x_BSHh: jax.Array, positions_BS: jax.Array, theta: float) -> jax.Array:
    """`x` with feature i and feature i + h/2 turned by position * theta^(-2i/h); same dtype."""
    half = x_BSHh.shape[-1] // 2
    frequency_G = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    angle_BS1G = positions_BS[:, :, None, None].astype(jnp.float32) * frequency_G
    cos, sin = jnp.cos(angle_BS1G), jnp.sin(angle_BS1G)
    first, second = x_BSHh[..., :half].astype(jnp.float32), x_BSHh[..., half:].astype(jnp.float32)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x_BSHh.dtype)
