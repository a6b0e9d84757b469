"""A function of one stage, which all stages run at the same time, each with its own arrays.

The mesh axis of the stages is manual inside: no layout names it there, and no array has a dim for
the stage. With `jax.vmap` all have one, of a single element on each device, and compilers for TPUs
copy gradients into another layout before they scatter them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from typing import Any

import jax
from jax.sharding import PartitionSpec

from trainer.model.sharding import stages

AXIS = "pipeline"
OWN = None
"""For arrays with a leading dim for the stage, which one stage's arrays do not have."""

Split = int | None
"""The dim of the layers, which the stages split: a stage has its own. Or `OWN`."""
OfStages = Callable[..., tuple[Any, ...]]

_in_a_dim: ContextVar[bool] = ContextVar("in_a_dim", default=False)


@contextmanager
def stages_in_a_dim() -> Iterator[None]:
    """Makes all arrays in stages that are traced inside have a dim for the stage.

    The check of layouts under explicit axis types needs it: it does not look into a `shard_map`.
    """
    token = _in_a_dim.set(True)
    try:
        yield
    finally:
        _in_a_dim.reset(token)


def on_stages(function: OfStages, arguments: Sequence[Split], results: Sequence[Split]) -> OfStages:
    """Returns a function of all stages' arrays that computes `function` of each stage's.

    `arguments` and `results` say how the arrays of each argument and result are split. `function`
    gets its layers as they are stored, so a loop over ticks keeps no copies of them.
    """
    if _in_a_dim.get():
        return _mapped(function, arguments, results)

    def of_stage(*given: Any) -> tuple[Any, ...]:
        own = (
            jax.tree.map(lambda x: x[0], one) if split is OWN else one
            for one, split in zip(given, arguments, strict=True)
        )
        return tuple(
            jax.tree.map(lambda x: x[None], one) if split is OWN else one
            for one, split in zip(function(*own), results, strict=True)
        )

    return jax.shard_map(
        of_stage,
        in_specs=tuple(map(_spec, arguments)),
        out_specs=tuple(map(_spec, results)),
        axis_names={AXIS},
        check_vma=False,
    )


def _spec(split: Split) -> PartitionSpec:
    return PartitionSpec(*[None] * (split or 0), AXIS)


def _mapped(function: OfStages, arguments: Sequence[Split], results: Sequence[Split]) -> OfStages:
    """Returns the same with a dim for the stage."""
    in_axes, out_axes = (tuple(split or 0 for split in some) for some in (arguments, results))
    of_stages = jax.vmap(function, in_axes, out_axes, spmd_axis_name=AXIS)

    def by_stage(x: jax.Array, split: int) -> jax.Array:
        return x.reshape(*x.shape[:split], stages(), -1, *x.shape[split + 1 :])

    def in_order(x: jax.Array, split: int) -> jax.Array:
        return x.reshape(*x.shape[:split], -1, *x.shape[split + 2 :])

    def changed(change: Callable[..., jax.Array], some: Any, splits: Sequence[Split]) -> Any:
        return tuple(
            one if split is OWN else jax.tree.map(partial(change, split=split), one)
            for one, split in zip(some, splits, strict=True)
        )

    return lambda *given: changed(
        in_order, of_stages(*changed(by_stage, given, arguments)), results
    )
