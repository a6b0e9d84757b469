"""A function checked under explicit axis types, on a mesh of devices that need not exist."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import AbstractMesh

from trainer.explicit.arrays import ExplicitMesh
from trainer.explicit.rerun import Rerun
from trainer.explicit.tally import Finding, findings


@dataclass(frozen=True)
class Report:
    findings: list[Finding]
    """The most bytes first."""
    stopped: str = ""
    """Why the backward pass is not in it; "": it is, where it was asked for."""


def check(
    function: Callable[..., Any],
    mesh: AbstractMesh,
    *arguments: Any,
    gradient: bool = True,
    times: int = 1,
) -> Report:
    """Of a function that runs `times` times a step.

    Arguments are pytrees of jax.ShapeDtypeStruct with shardings on `mesh`, whose axes are automatic
    as in the run itself. With `gradient` the function's first result is a scalar, and the gradient
    by its first argument is checked too.
    """
    with jax.sharding.use_abstract_mesh(mesh):
        traced = jax.make_jaxpr(function)(*arguments)
    explicit = ExplicitMesh.of(mesh)
    rerun = Rerun(explicit)
    first, *rest = ([*map(explicit.struct, jax.tree.leaves(tree))] for tree in arguments)

    def again(first: list[Any], rest: list[Any]) -> tuple[Any, list[Any]]:
        values = [*first, *jax.tree.leaves(rest)]
        result, *others = rerun.run(traced, values, [None] * len(traced.jaxpr.outvars))
        return result, others

    def report(function: Callable[..., Any], stopped: str = "") -> Report:
        with jax.sharding.use_abstract_mesh(explicit.mesh):
            program = jax.make_jaxpr(function)(first, rest)
        return Report(findings(program, rerun.notebook, explicit.sizes, times), stopped)

    if not gradient:
        return report(again)
    try:
        return report(jax.value_and_grad(again, has_aux=True))
    except Exception as error:  # In a rule of differentiation, where nothing can be assumed.
        return report(again, str(error).splitlines()[0])
