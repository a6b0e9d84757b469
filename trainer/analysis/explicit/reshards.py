"""Operands that an operation moves although its types are valid: it needs them in another layout.

Explicit types determine the layout of a result, and let the compiler move the operands.
"""

from collections.abc import Callable, Iterator
from typing import Any

from trainer.analysis.explicit.layouts import Layout

Need = tuple[int, Layout]
"""Number of an operand, and the layout in which the operation needs it."""


def needs(equation: Any, operands: list[Layout], result: Layout) -> list[Need]:
    """Returns the operands that an equation moves; `result` is the layout of its first output."""
    name = equation.primitive.name
    if name == "dot_general":
        return list(_of_product(equation.params["dimension_numbers"], operands, result))
    if name not in WORKS_ALONG:
        return []
    dims = set(WORKS_ALONG[name](equation))
    worked_on = operands if name == "concatenate" else operands[:1]
    return [
        (number, _without(layout, dims))
        for number, layout in enumerate(worked_on)
        if any(layout[dim] for dim in dims)
    ]


def summed_axes(dimension_numbers: Any, left: Layout, right: Layout) -> tuple[str, ...]:
    """Returns the axes along which devices have partial sums of a product."""
    (left_dims, right_dims), _ = dimension_numbers
    pairs = zip(left_dims, right_dims, strict=True)
    return tuple(axis for a, b in pairs for axis in left[a] if axis in right[b])


def result_of_product(dimension_numbers: Any, left: Layout, right: Layout) -> Layout:
    """Returns the natural layout: batch dims, then the free dims of both operands."""
    (left_sums, right_sums), (left_batch, right_batch) = dimension_numbers
    batch = (left[a] or right[b] for a, b in zip(left_batch, right_batch, strict=True))
    free = (
        axes
        for layout, used in (
            (left, (*left_sums, *left_batch)),
            (right, (*right_sums, *right_batch)),
        )
        for dim, axes in enumerate(layout)
        if dim not in used
    )
    return (*batch, *free)


def _of_product(dimension_numbers: Any, operands: list[Layout], result: Layout) -> Iterator[Need]:
    sums, batches = dimension_numbers
    outputs = iter(result[len(batches[0]) :])
    for number, layout in enumerate(operands):
        pairs = zip(sums[number], sums[1 - number], strict=True)
        partners = {dim: operands[1 - number][other] for dim, other in pairs}
        summed = {axis for dim, axes in partners.items() if axes == layout[dim] for axis in axes}
        needed: list[tuple[str, ...]] = []
        for dim, axes in enumerate(layout):
            if dim in partners:
                needed.append(axes if axes == partners[dim] else ())
                continue
            is_batch = dim in batches[number]
            wanted = result[batches[number].index(dim)] if is_batch else next(outputs)
            # A whole dim is sliced locally to any layout. Along the axes of partial sums, only the
            # result is split, when the sums are added up.
            needed.append(wanted if axes and not summed.intersection(wanted) else ())
        if tuple(needed) != layout:
            yield number, tuple(needed)


def _without(layout: Layout, dims: set[int]) -> Layout:
    return tuple(() if dim in dims else axes for dim, axes in enumerate(layout))


def _other_sizes(operand: Any, other: Any) -> list[int]:
    """Returns the dims in which the sizes of two arrays differ."""
    pairs = zip(operand.aval.shape, other.aval.shape, strict=True)
    return [dim for dim, (one, two) in enumerate(pairs) if one != two]


def _resized(equation: Any) -> list[int]:
    return _other_sizes(equation.invars[0], equation.outvars[0])


WORKS_ALONG: dict[str, Callable[[Any], Any]] = {
    "slice": _resized,
    "dynamic_slice": _resized,
    "dynamic_update_slice": lambda equation: _other_sizes(*equation.invars[:2]),
    "pad": _resized,
    "concatenate": lambda equation: [equation.params["dimension"]],
    "rev": lambda equation: equation.params["dimensions"],
    "sort": lambda equation: [equation.params["dimension"]],
}
"""Primitive -> dims that it works along, and therefore needs whole."""
