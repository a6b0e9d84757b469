"""Functions of pipeline stages, as functions of arrays with a dim for the stage.

The check does not look into a `shard_map`, where the functions of stages are. With a dim for the
stage, their arrays lie the same way, and the check looks into them.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AxisType, PartitionSpec

from trainer.analysis.explicit.layouts import Values
from trainer.model.pipeline_stages import AXIS

Run = Callable[[Any, Values], list[Any]]
"""Runs a traced function on values under explicit types."""


def is_of_stages(shard_map: Any) -> bool:
    """Returns whether the `shard_map` with these parameters is one over pipeline stages."""
    return set(shard_map["newly_manual_axes"]) == {AXIS}


def run_on_stages(shard_map: Any, run: Run, values: Values) -> list[Any]:
    """Runs the function of a `shard_map` over stages, with a dim for the stage."""
    mesh = shard_map["mesh"]
    of_jaxpr = jaxpr_as_fun(ClosedJaxpr(shard_map["jaxpr"], ()))
    arguments, results = _dims(shard_map["in_specs"]), _dims(shard_map["out_specs"])

    def split(*values: Any) -> list[Any]:
        return [
            x.reshape(*x.shape[:dim], mesh.shape[AXIS], -1, *x.shape[dim + 1 :])
            for x, dim in zip(values, arguments, strict=True)
        ]

    def of_stage(*values: Any) -> tuple[Any, ...]:
        return tuple(of_jaxpr(*values))

    def joined(*values: Any) -> list[Any]:
        return [
            x.reshape(*x.shape[:dim], -1, *x.shape[dim + 2 :])
            for x, dim in zip(values, results, strict=True)
        ]

    of_stages = jax.vmap(of_stage, arguments, results, spmd_axis_name=AXIS)
    manual = mesh.update_axis_types({AXIS: AxisType.Manual})
    for function, inside in ((split, mesh), (of_stages, manual), (joined, mesh)):
        shapes = [jax.ShapeDtypeStruct(x.shape, x.dtype) for x in values]
        with jax.sharding.use_abstract_mesh(inside):
            traced = jax.make_jaxpr(function)(*shapes)
        values = run(traced, values)
    return [*values]


def _dims(specs: Sequence[PartitionSpec]) -> tuple[int, ...]:
    """Returns the dim of each array that the stages split."""
    return tuple(tuple(spec).index(AXIS) for spec in specs)
