"""AdamW with a schedule, from a job's `optimizer` section."""

from collections.abc import Iterable

import jax
import optax

from trainer.spec.job import Job, Optimizer
from trainer.spec.plan import ArrayPlan


def schedule(optimizer: Optimizer, steps: int) -> optax.Schedule:
    """Updates done -> learning rate of the next one.

    Warm-up ends at the full rate with update `warmup_steps`; the last update has `final_fraction`
    of it (`constant`: all of it).
    """
    rate, warmup = optimizer.learning_rate, optimizer.warmup_steps
    rest = max(1, steps - max(1, warmup))
    decays = {
        "cosine": optax.cosine_decay_schedule(rate, rest, optimizer.final_fraction),
        "linear": optax.linear_schedule(rate, rate * optimizer.final_fraction, rest),
        "constant": optax.constant_schedule(rate),
    }
    decay = decays[optimizer.schedule]
    if warmup == 0:
        return decay
    # The first update already moves: a rate of zero would waste its batch.
    climb = optax.linear_schedule(rate / warmup, rate, max(1, warmup - 1))
    return optax.join_schedules([climb, decay], [warmup - 1])


def make(job: Job, arrays: Iterable[ArrayPlan]) -> optax.GradientTransformation:
    """The update rule. Weight decay leaves norms out: they are scales around one, not weights."""
    settings = job.optimizer
    adamw = optax.adamw(
        schedule(settings, job.steps),
        b1=settings.beta1,
        b2=settings.beta2,
        eps=settings.eps,
        weight_decay=settings.weight_decay,
        mask={array.name: "norm" not in array.axes for array in arrays},
    )
    if settings.clip_norm is None:
        return adamw
    return optax.chain(optax.clip_by_global_norm(settings.clip_norm), adamw)


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
