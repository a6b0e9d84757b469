"""The learning rate of each update.

All numbers of a schedule are arguments of the compiled step: jobs that differ only in them, or in
their number of steps, share a program.
"""

from typing import Generic, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from trainer.contract.config.job import Job
from trainer.step.train_state import Leaf


class Schedule(NamedTuple, Generic[Leaf]):
    """A linear warm-up, a constant rate, and a decay: scalars, or their shapes."""

    peak: Leaf
    """Rate after the warm-up, float32."""
    final: Leaf
    """Rate of the last update, float32."""
    warmup: Leaf
    """Number of updates before the first one with the full rate, int32."""
    decay_start: Leaf
    """Number of updates before the decay, int32."""
    decay: Leaf
    """Number of updates of the decay, int32, at least 1."""


_RATE, _COUNT = jax.ShapeDtypeStruct((), jnp.float32), jax.ShapeDtypeStruct((), jnp.int32)
SCHEDULE_SHAPES = Schedule(peak=_RATE, final=_RATE, warmup=_COUNT, decay_start=_COUNT, decay=_COUNT)
"""Shapes and dtypes of a schedule."""


def schedule_of(job: Job) -> Schedule[np.ndarray]:
    """Returns the schedule of a job.

    Warm-up reaches the full rate with update `warmup_steps`. The last update has `final_fraction`
    of it (`constant`: all of it). `wsd` (warm-up, stable, decay) keeps the full rate until the last
    `decay_steps`; by default these are a tenth of the run.

    References:
        WSD: MiniCPM, section 4, https://arxiv.org/abs/2404.06395; its decay is exponential
        Linear decay after a constant rate: https://arxiv.org/abs/2405.18392
    """
    optimizer = job.optimizer
    warmup = max(0, optimizer.warmup_steps - 1)
    decay = rest = max(1, job.steps - max(1, optimizer.warmup_steps))
    if optimizer.schedule == "wsd":
        decay = min(optimizer.decay_steps or max(1, job.steps // 10), rest)
    fraction = 1.0 if optimizer.schedule == "constant" else optimizer.final_fraction
    peak = optimizer.learning_rate
    return Schedule(
        peak=np.asarray(peak, np.float32),
        final=np.asarray(peak * fraction, np.float32),
        warmup=np.asarray(warmup, np.int32),
        decay_start=np.asarray(warmup + rest - decay, np.int32),
        decay=np.asarray(decay, np.int32),
    )


def learning_rate(
    schedule: Schedule[jax.Array], update: jax.Array, *, is_cosine: bool
) -> jax.Array:
    """Returns the rate of an update, float32. `update` is the number of updates before it.

    The rate rises linearly from above zero, because a rate of zero would waste the first batch. It
    decays linearly, or along half a cosine (SGDR, https://arxiv.org/abs/1608.03983).
    """
    rising = schedule.peak * ((update + 1) / (schedule.warmup + 1))
    done = jnp.clip((update - schedule.decay_start) / schedule.decay, 0.0, 1.0)
    left = 0.5 * (1 + jnp.cos(jnp.pi * done)) if is_cosine else 1 - done
    falling = schedule.peak * left + schedule.final * (1 - left)
    return jnp.where(update < schedule.warmup, rising, falling).astype(jnp.float32)
