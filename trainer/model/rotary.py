"""Rotary positions: pairs of features turned by an angle that grows with the position."""

import math

import jax
import jax.numpy as jnp

from trainer.spec.model import RopeScaling


def rotate(
    x_BSHh: jax.Array, positions_BS: jax.Array, theta: float, scaling: RopeScaling | None = None
) -> jax.Array:
    """`x` with feature i and feature i + h/2 turned by position * theta^(-2i/h); same dtype."""
    half = x_BSHh.shape[-1] // 2
    frequency_G = theta ** (-jnp.arange(half, dtype=jnp.float32) / half)
    if scaling is not None:
        frequency_G = _scaled(frequency_G, scaling)
    angle_BS1G = positions_BS[:, :, None, None].astype(jnp.float32) * frequency_G
    cos, sin = jnp.cos(angle_BS1G), jnp.sin(angle_BS1G)
    first, second = x_BSHh[..., :half].astype(jnp.float32), x_BSHh[..., half:].astype(jnp.float32)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x_BSHh.dtype)


def _scaled(frequency_G: jax.Array, scaling: RopeScaling) -> jax.Array:
    """Slower by `factor`: all of them, or as Llama 3.1 has it those that turn less than
    `low_frequency_factor` times over the trained positions, and by degrees up to
    `high_frequency_factor` times.
    """
    slowed_G = frequency_G / scaling.factor
    if scaling.kind == "linear":
        return slowed_G
    low, high = scaling.low_frequency_factor, scaling.high_frequency_factor
    turns_G = scaling.trained_positions * frequency_G / (2 * math.pi)
    kept_G = jnp.clip((turns_G - low) / (high - low), 0, 1)
    return slowed_G * (1 - kept_G) + frequency_G * kept_G
