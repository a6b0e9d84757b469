"""AdamW, Lion, Muon or Adafactor, from a job's `optimizer` section.

References:
    AdamW: https://arxiv.org/abs/1711.05101
    Lion: https://arxiv.org/abs/2302.06675
    Muon and Adafactor: see muon.py and adafactor.py
"""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jax.tree_util import DictKey, KeyPath
from jax.typing import DTypeLike

from trainer.contract.config.job import Job
from trainer.contract.config.optimizer import Optimizer
from trainer.contract.planning import parameter_groups
from trainer.contract.planning.optimizer_state import matrix
from trainer.contract.planning.parameter_groups import Pull
from trainer.contract.planning.plan import ArrayPlan
from trainer.model import Params
from trainer.step.adafactor import scale_by_adafactor
from trainer.step.muon import scale_by_muon


def make(job: Job, arrays: Sequence[ArrayPlan]) -> optax.GradientTransformation:
    """Returns the rule for an update's direction, before the learning rate and after clipping."""
    settings = job.optimizer
    pulls = {
        array.name: parameter_groups.pull(settings, array.name, array.axes) for array in arrays
    }

    def pulled(steps: Any, params: Any) -> Params:
        return {name: _pulled(pulls[name], step, params[name]) for name, step in steps.items()}

    kept = _kept_as(jnp.dtype(settings.moments_dtype), _rule(settings, arrays))
    return optax.chain(kept, optax.stateless(pulled))


def _rule(settings: Optimizer, arrays: Sequence[ArrayPlan]) -> optax.GradientTransformation:
    if settings.name == "lion":
        return optax.scale_by_lion(settings.beta1, settings.beta2)
    if settings.name == "adafactor":
        return scale_by_adafactor({array.name: array.axes for array in arrays})
    adam = optax.scale_by_adam(settings.beta1, settings.beta2, settings.eps)
    if settings.name == "adamw":
        return adam
    matrices = {array.name: array.axes for array in arrays if matrix(array.axes)}
    return _split(matrices, scale_by_muon(settings.momentum, matrices), adam)


class SplitState(NamedTuple):
    """States of two rules that share the parameters."""

    chosen: Any
    rest: Any


def _split(
    names: Collection[str],
    chosen: optax.GradientTransformation,
    rest: optax.GradientTransformation,
) -> optax.GradientTransformation:
    """Combines two rules: `chosen` for the parameters with these names, `rest` for the others."""

    def parts(tree: Any) -> tuple[Params, Params]:
        return _only(tree, lambda name: name in names), _only(tree, lambda name: name not in names)

    def init(params: Any) -> SplitState:
        ours, others = parts(params)
        return SplitState(chosen.init(ours), rest.init(others))

    def update(updates: Any, state: Any, params: Any = None) -> tuple[Any, SplitState]:
        (ours, others), (our_params, other_params) = parts(updates), parts(params)
        our_steps, our_state = chosen.update(ours, state.chosen, our_params)
        other_steps, other_state = rest.update(others, state.rest, other_params)
        steps = {**dict(our_steps), **dict(other_steps)}  # type: ignore[arg-type]
        return steps, SplitState(our_state, other_state)

    return optax.GradientTransformation(init, update)


def _only(tree: Params, wanted: Callable[[str], bool]) -> Params:
    return {name: leaf for name, leaf in tree.items() if wanted(name)}


def _kept_as(dtype: jnp.dtype, rule: optax.GradientTransformation) -> optax.GradientTransformation:
    """Returns `rule` with moments stored in `dtype` between updates; it computes in float32."""

    def init(params: optax.Params) -> optax.OptState:
        return _as(dtype, rule.init(params))

    def update(
        updates: optax.Updates, state: optax.OptState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, optax.OptState]:
        direction, moved = rule.update(updates, _as(jnp.float32, state), params)
        return direction, _as(dtype, moved)

    return optax.GradientTransformation(init, update)


def _as(dtype: DTypeLike, state: optax.OptState) -> optax.OptState:
    """Casts the moments of a state to `dtype`; counters stay unchanged."""
    return jax.tree.map(
        lambda x: x.astype(dtype) if jnp.issubdtype(x.dtype, jnp.floating) else x, state
    )


def _pulled(pull: Pull, step: jax.Array, param: jax.Array) -> jax.Array:
    """Adds weight decay to a parameter's step, and applies its learning-rate factor."""
    if pull.weight_decay:
        step = step + pull.weight_decay * param
    return step if pull.learning_rate_factor == 1 else pull.learning_rate_factor * step


def clipping(optimizer: Optimizer, grad_norm: jax.Array) -> jax.Array:
    """Returns the factor, a float32 scalar, that clips gradients of this norm to `clip_norm`.

    It is 1 for smaller norms, and when the job sets no `clip_norm`.

    References:
        Clipping by the global norm: https://arxiv.org/abs/1211.5063
    """
    if optimizer.clip_norm is None:
        return jnp.float32(1)
    return jnp.minimum(1.0, optimizer.clip_norm / grad_norm)


def update_ema(optimizer: Optimizer, average: Params, params: Params, updates: jax.Array) -> Params:
    """Returns the exponential moving average after `updates` updates, with `params` added.

    The decay is the smaller of `ema_decay` and (1 + updates) / (10 + updates): the average forgets
    the first parameters faster.

    References:
        The ramp: `num_updates` of TensorFlow's tf.train.ExponentialMovingAverage.
    """
    assert optimizer.ema_decay is not None
    kept = jnp.minimum(optimizer.ema_decay, (1 + updates) / (10 + updates))
    return jax.tree.map(lambda mean, param: mean + (1 - kept) * (param - mean), average, params)


def shardings(
    moments: optax.OptState,
    params: dict[str, jax.ShapeDtypeStruct],
    param_shardings: dict[str, jax.sharding.NamedSharding],
    whole: jax.sharding.NamedSharding,
    memory: str | None,
) -> optax.OptState:
    """Returns the sharding of every leaf of the optimizer's state, whose shapes are `moments`.

    Moments are sharded like their parameter, in the kind of memory `memory`; None is that of the
    devices. Counters and dims that are summed away are whole.
    """

    def place(path: KeyPath, leaf: jax.ShapeDtypeStruct) -> jax.sharding.NamedSharding:
        names = [key.key for key in path if isinstance(key, DictKey)]
        if not names:
            return whole
        like, shape = param_shardings[names[-1]], params[names[-1]].shape
        sizes = zip(like.spec, shape, leaf.shape, strict=True)
        spec = (axis if size == kept else None for axis, size, kept in sizes)
        parts = jax.sharding.PartitionSpec(*spec)
        return jax.sharding.NamedSharding(like.mesh, parts, memory_kind=memory)

    return jax.tree_util.tree_map_with_path(place, moments)
