"""AdamW or Lion with a schedule, from a job's `optimizer` section."""

from collections.abc import Iterable

import jax
import jax.numpy as jnp
import optax

from trainer.spec.job import Job, Optimizer
from trainer.spec.plan import ArrayPlan


def schedule(optimizer: Optimizer, steps: int) -> optax.Schedule:
    """Updates done -> learning rate of the next one.

    Warm-up ends at the full rate with update `warmup_steps`; the last update has `final_fraction`
    of it (`constant`: all of it). `wsd` stays at the full rate until the last `decay_steps`.
    """
    rate, warmup = optimizer.learning_rate, optimizer.warmup_steps
    rest = max(1, steps - max(1, warmup))
    decays = {
        "cosine": optax.cosine_decay_schedule(rate, rest, optimizer.final_fraction),
        "linear": optax.linear_schedule(rate, rate * optimizer.final_fraction, rest),
        "constant": optax.constant_schedule(rate),
        "wsd": _stable_then_linear(optimizer, rest, steps),
    }
    decay = decays[optimizer.schedule]
    if warmup == 0:
        return decay
    # The first update already moves: a rate of zero would waste its batch.
    climb = optax.linear_schedule(rate / warmup, rate, max(1, warmup - 1))
    return optax.join_schedules([climb, decay], [warmup - 1])


def _stable_then_linear(optimizer: Optimizer, updates: int, steps: int) -> optax.Schedule:
    """After warm-up: `updates` in all, of which the last ones fall."""
    rate = optimizer.learning_rate
    falling = min(optimizer.decay_steps or max(1, steps // 10), updates)
    fall = optax.linear_schedule(rate, rate * optimizer.final_fraction, falling)
    return optax.join_schedules([optax.constant_schedule(rate), fall], [updates - falling])


def make(job: Job, arrays: Iterable[ArrayPlan]) -> optax.GradientTransformation:
    """The direction of an update, before the learning rate and after clipping.

    Weight decay leaves norms out: they are scales around one, not weights.
    """
    settings = job.optimizer
    rules = {
        "adamw": optax.scale_by_adam(settings.beta1, settings.beta2, settings.eps),
        "lion": optax.scale_by_lion(settings.beta1, settings.beta2),
    }
    return optax.chain(
        rules[settings.name],
        optax.add_decayed_weights(
            settings.weight_decay,
            mask={array.name: "norm" not in array.axes for array in arrays},
        ),
    )


def clipping(optimizer: Optimizer, grad_norm: jax.Array) -> jax.Array:
    """The factor that brings gradients of this norm down to `clip_norm`, where they are above."""
    if optimizer.clip_norm is None:
        return jnp.float32(1)
    return jnp.minimum(1.0, optimizer.clip_norm / grad_norm)


def shardings(
    rule: optax.GradientTransformation,
    params: dict[str, jax.ShapeDtypeStruct],
    param_shardings: dict[str, jax.sharding.NamedSharding],
    whole: jax.sharding.NamedSharding,
) -> optax.OptState:
    """For every leaf of the optimizer's state: moments as their parameter, counters whole."""
    state = jax.eval_shape(rule.init, params)
    return optax.tree.map_params(
        rule,
        lambda _, sharding: sharding,
        state,
        param_shardings,
        transform_non_params=lambda _: whole,
    )
