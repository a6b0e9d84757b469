"""A function of one stage, which all stages run at the same time, each with its own arrays.

The mesh axis of the stages is manual inside: no layout names it there, and no array has a dim for
the stage. With `jax.vmap` all have one, of a single element on each device, and compilers for TPUs
copy gradients into another layout before they scatter them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.sharding import PartitionSpec

AXIS = "pipeline"
OWN = None
"""For arrays with a leading dim for the stage, which one stage's arrays do not have."""

Split = int | None
"""The dim of the layers, which the stages split: a stage has its own. Or `OWN`."""
OfStages = Callable[..., tuple[Any, ...]]


def on_stages(function: OfStages, arguments: Sequence[Split], results: Sequence[Split]) -> OfStages:
    """Returns a function of all stages' arrays that computes `function` of each stage's.

    `arguments` and `results` say how the arrays of each argument and result are split. `function`
    gets its layers as they are stored, so a loop over ticks keeps no copies of them.
    """

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
