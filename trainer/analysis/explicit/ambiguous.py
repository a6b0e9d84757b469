"""Layouts to assume for operations whose result JAX gives no layout under explicit types.

The layout is that of the program's own next constraint, if any. Otherwise it follows from the
smallest change of the operands' layouts under which JAX accepts the operation.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax

from trainer.analysis.explicit import layouts, reshards
from trainer.analysis.explicit.findings import EquationNote
from trainer.analysis.explicit.gather import LookUp
from trainer.analysis.explicit.layouts import Asked, ExplicitMesh, Layout, Values

Bind = Callable[..., Any]


def assumed(
    mesh: ExplicitMesh,
    equation: Any,
    bind: Bind,
    operands: Values,
    asked: Asked,
    note: EquationNote,
) -> Sequence[Any]:
    """Returns the results of an operation that JAX refused to bind."""
    name = equation.primitive.name
    if name == "dot_general":
        numbers = equation.params["dimension_numbers"]
        return _product(mesh, bind, numbers, operands, asked, note)
    if name == "gather":
        return _look_up(mesh, bind, LookUp.of(equation), operands, asked, note)
    several = equation.primitive.multiple_results
    if found := _cheapest(mesh, bind, operands, asked):
        results = bind(*mesh.reshard_all(operands, found))
        return results if several else [results]
    wholes = [layouts.whole(len(v.aval.shape)) for v in equation.outvars]
    wanted = [layout or whole for layout, whole in zip(asked, wholes, strict=True)]

    def region(*values: Any) -> Any:
        return bind(*values) if several else [bind(*values)]

    return mesh.automatic(region, operands, wanted)


def _product(
    mesh: ExplicitMesh, bind: Bind, numbers: Any, operands: Values, asked: Asked, note: EquationNote
) -> list[Any]:
    """Binds a product: adds up partial sums, and moves operands to the layout of the result."""
    left, right = mesh.layouts(operands)
    note.summed = reshards.summed_axes(numbers, left, right)
    natural = layouts.once(reshards.result_of_product(numbers, left, right), note.summed)
    note.result = asked[0] or natural
    return [bind(*operands, out_sharding=mesh.sharding(note.result))]


def _look_up(
    mesh: ExplicitMesh, bind: Bind, dims: LookUp, operands: Values, asked: Asked, note: EquationNote
) -> list[Any]:
    """Binds a look-up: each device looks up what it has, and sums follow if the table is split."""
    table, indices = mesh.layouts(operands)
    note.result = asked[0] or layouts.once(dims.result(table, indices))
    needed = dims.operands(table, indices, note.result)
    note.summed = dims.summed_axes(needed[0])
    placed = mesh.reshard_all(operands, needed)
    return mesh.automatic(lambda *values: [bind(*values)], placed, [note.result])


def _cheapest(
    mesh: ExplicitMesh, bind: Bind, operands: Values, asked: Asked
) -> list[Layout] | None:
    """Returns the best operand layouts that JAX accepts. Returns None when it accepts none.

    The best ones give the requested results, then split the results the most, then move the fewest
    bytes.
    """
    avals, old = [jax.typeof(value) for value in operands], mesh.layouts(operands)

    def cost(new: list[Layout], results: list[Any]) -> tuple[int, int, int]:
        found = mesh.layouts(results)
        unasked = sum(a is not None and a != b for a, b in zip(asked, found, strict=True))
        pairs = zip(results, found, strict=True)
        kept = sum(layouts.shard_bytes(aval, layout, mesh.sizes) for aval, layout in pairs)
        changes = zip(avals, old, new, strict=True)
        moved = sum(layouts.moved_bytes(aval, a, b, mesh.sizes) for aval, a, b in changes)
        return unasked, kept, moved

    costs = [
        (cost(new, results), number, new)
        for number, new in enumerate(_changes(mesh, avals, old))
        if (results := _results_of(mesh, bind, avals, new))
    ]
    return min(costs)[-1] if costs else None


def _changes(mesh: ExplicitMesh, avals: list[Any], old: list[Layout]) -> Iterator[list[Layout]]:
    """Yields candidates: one operand changed, all operands of its rank changed, or all whole."""
    for number in range(len(old)):
        for other in _alternatives(avals, old, number):
            yield [*old[:number], other, *old[number + 1 :]]
            alike = [other if len(other) == len(own) else own for own in old]
            pairs = zip(alike, avals, strict=True)
            if all(layouts.divides(one, aval.shape, mesh.sizes) for one, aval in pairs):
                yield alike
    yield [layouts.whole(len(layout)) for layout in old]


def _alternatives(avals: list[Any], old: list[Layout], number: int) -> Iterator[Layout]:
    """Yields the layouts of all operands of its shape, and its own layout without some axes."""
    shape = avals[number].shape
    yield from (layout for layout, aval in zip(old, avals, strict=True) if aval.shape == shape)
    axes = sorted(layouts.axes_of(old[number]))
    for count in range(1, len(axes) + 1):
        for gone in itertools.combinations(axes, count):
            yield tuple(tuple(a for a in split if a not in gone) for split in old[number])


def _results_of(
    mesh: ExplicitMesh, bind: Bind, avals: list[Any], new: list[Layout]
) -> list[Any] | None:
    """Returns the types that JAX gives an operation's results. Returns None when it raises."""
    shapes = [
        jax.ShapeDtypeStruct(aval.shape, aval.dtype, sharding=mesh.sharding(layout))
        for aval, layout in zip(avals, new, strict=True)
    ]
    try:
        return jax.tree.leaves(jax.eval_shape(bind, *shapes))
    except Exception:  # It was traced before: only the layouts can be wrong.
        return None
