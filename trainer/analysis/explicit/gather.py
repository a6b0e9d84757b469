"""A look-up in a table (JAX's `gather`): the origin of each dim of its result."""

from dataclasses import dataclass
from typing import Any

from trainer.analysis.explicit.layouts import Layout, axes_of


@dataclass(frozen=True)
class LookUp:
    """Dims of the result, mapped to the dims of the operands that they come from."""

    rank: int
    rows: dict[int, int]
    """Dims of the table that the result has whole."""
    places: dict[int, int]
    """Dims of the indices."""
    batches: dict[int, int]
    """Dims of the table that are batched with one of the indices."""

    @classmethod
    def of(cls, equation: Any) -> "LookUp":
        numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
        shape, rank = equation.invars[0].aval.shape, len(equation.outvars[0].aval.shape)
        gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
        kept = [dim for dim in range(len(shape)) if dim not in gone]
        pairs = zip(numbers.offset_dims, kept, strict=True)
        others = [dim for dim in range(rank) if dim not in numbers.offset_dims]
        along = zip(numbers.operand_batching_dims, numbers.start_indices_batching_dims, strict=True)
        return cls(
            rank=rank,
            rows={dim: table for dim, table in pairs if sizes[table] == shape[table]},
            places={dim: place for place, dim in enumerate(others)},
            batches={others[place]: table for table, place in along},
        )

    def result(self, table: Layout, indices: Layout) -> Layout:
        """Returns the layout that follows from the operands; an axis may be in it twice."""
        return tuple(self._dim(dim, table, indices) for dim in range(self.rank))

    def operands(self, table: Layout, indices: Layout, result: Layout) -> list[Layout]:
        """Returns the operand layouts for a given result; whole dims are sliced locally."""
        known = {**self.rows, **self.batches}
        from_result = {table_dim: result[dim] for dim, table_dim in known.items()}
        taken = axes_of(result)
        new_table = tuple(
            axes and from_result[dim] if dim in from_result else _without(axes, taken)
            for dim, axes in enumerate(table)
        )
        places = {place: result[dim] for dim, place in self.places.items()}
        new_indices = tuple(axes and places.get(dim, ()) for dim, axes in enumerate(indices))
        return [new_table, new_indices]

    def summed_axes(self, table: Layout) -> tuple[str, ...]:
        """Returns the axes along which one device has a row, and the other devices add zeros."""
        kept = {*self.rows.values(), *self.batches.values()}
        return tuple(axis for dim, axes in enumerate(table) if dim not in kept for axis in axes)

    def _dim(self, dim: int, table: Layout, indices: Layout) -> tuple[str, ...]:
        if dim in self.rows:
            return table[self.rows[dim]]
        if dim not in self.places:
            return ()
        return indices[self.places[dim]] or (
            table[self.batches[dim]] if dim in self.batches else ()
        )


def _without(axes: tuple[str, ...], taken: set[str]) -> tuple[str, ...]:
    return tuple(axis for axis in axes if axis not in taken)
