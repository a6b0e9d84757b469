"""Layouts that a program's own constraints give to the results before them."""

from collections.abc import Sequence
from typing import Any

from trainer.analysis.explicit.layouts import Layout, Sizes, of_spec

Ahead = dict[Any, Layout]
"""Variable of a jaxpr -> the layout of the first constraint that it reaches."""

CALLS = {"jit": "jaxpr", "closed_call": "call_jaxpr", "custom_jvp_call": "call_jaxpr",
         "custom_vjp_call": "call_jaxpr"}  # fmt: skip
"""Primitives that only call a function, and the parameter that holds it."""


def constraints_ahead(jaxpr: Any, results: Sequence[Layout | None], sizes: Sizes) -> Ahead:
    """Returns the layouts ahead of a jaxpr's variables; `results` has those ahead of its results.

    It passes through operations that keep or permute all dims.
    """
    outs = zip(jaxpr.outvars, results, strict=True)
    ahead: Ahead = {variable: layout for variable, layout in outs if layout and _names(variable)}
    for equation in reversed(jaxpr.eqns):
        for variable, layout in _before(equation, ahead, sizes):
            if _names(variable) and layout:
                ahead[variable] = layout
    return ahead


def open_jaxpr(function: Any) -> tuple[Any, list[Any]]:
    """Returns a jaxpr and its constants, whichever class holds them."""
    return getattr(function, "jaxpr", function), list(getattr(function, "consts", ()))


def _before(equation: Any, ahead: Ahead, sizes: Sizes) -> list[tuple[Any, Layout | None]]:
    """Returns the operands of an equation with the layouts ahead of them."""
    name, params = equation.primitive.name, equation.params
    results = [ahead.get(variable) for variable in equation.outvars]
    if name == "sharding_constraint":
        (operand,) = equation.invars
        return [(operand, of_spec(params["sharding"].spec, operand.aval.ndim, sizes))]
    if name in CALLS:
        jaxpr, _ = open_jaxpr(params[CALLS[name]])
        inner = constraints_ahead(jaxpr, results, sizes)
        outside = zip(equation.invars, jaxpr.invars, strict=True)
        return [(variable, inner.get(inside)) for variable, inside in outside]
    if name == "dot_general" or len(results) != 1 or not results[0]:
        return []
    if name == "transpose":
        places = params["permutation"]
        back = tuple(results[0][places.index(dim)] for dim in range(len(places)))
        return [(equation.invars[0], back)]
    shape = equation.outvars[0].aval.shape
    return [(v, results[0]) for v in equation.invars if getattr(v.aval, "shape", None) == shape]


def _names(variable: Any) -> bool:
    """Returns whether it is a variable: a literal holds its value instead."""
    return not hasattr(variable, "val")
