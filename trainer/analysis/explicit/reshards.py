"""What an operation moves though its types are in order: operands that do not lie as it needs them.

Explicit types say where a result lies, and leave it to the compiler to bring the operands there.
"""

from collections.abc import Callable, Iterator
from typing import Any

from trainer.analysis.explicit.layouts import Layout

Need = tuple[int, Layout]
"""Number of an operand, and the layout that it is needed in."""


def needs(equation: Any, operands: list[Layout], result: Layout) -> list[Need]:
    """The operands of an equation that must be moved for it; `result` is of its first output."""
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
    """Axes along which the devices have parts of a product's sums."""
    (left_dims, right_dims), _ = dimension_numbers
    pairs = zip(left_dims, right_dims, strict=True)
    return tuple(axis for a, b in pairs for axis in left[a] if axis in right[b])


def result_of_product(dimension_numbers: Any, left: Layout, right: Layout) -> Layout:
    """Batch dims, then what is left over of both, as they lie."""
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
            # What lies whole everywhere is cut to any layout where it is. Along axes that sums are
            # in parts over only the result is split, when those are added up.
            needed.append(wanted if axes and not summed.intersection(wanted) else ())
        if tuple(needed) != layout:
            yield number, tuple(needed)


def _without(layout: Layout, dims: set[int]) -> Layout:
    return tuple(() if dim in dims else axes for dim, axes in enumerate(layout))


def _other_sizes(operand: Any, other: Any) -> list[int]:
    """Dims that two arrays have different sizes of."""
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
"""Operations that work along dims, whatever splits those: primitive -> the dims."""
