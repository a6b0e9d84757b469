"""Arrays with explicit types on an abstract mesh: where they lie, and how they are moved."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from trainer.explicit import layouts
from trainer.explicit.layouts import Layout, Sizes

Values = Sequence[Any]
Asked = Sequence[Layout | None]
"""The layouts of results that constraints further on ask for; None: nothing does."""


@dataclass(frozen=True)
class ExplicitMesh:
    """The mesh under which shardings are part of the types."""

    mesh: AbstractMesh
    sizes: Sizes
    repeated: dict[int, Any] = field(default_factory=dict)
    """Arrays of one repeated value, by id. Those lie wherever they are needed: `zeros_like` and its
    kin make them there, where layouts are part of types."""

    @classmethod
    def of(cls, mesh: AbstractMesh) -> "ExplicitMesh":
        """Of the axes of an automatic one."""
        kinds = (AxisType.Explicit,) * len(mesh.axis_names)
        explicit = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)
        return cls(explicit, dict(mesh.shape))

    def struct(self, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """The same array with its layout in its type."""
        sharding = self.sharding(layouts.of_spec(spec_of(leaf), len(leaf.shape), self.sizes))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def sharding(self, layout: Layout) -> NamedSharding:
        return NamedSharding(self.mesh, layouts.spec(layout))

    def layout(self, value: Any) -> Layout:
        """Where an array, a tracer or a shape lies; whole for what is no array."""
        return layouts.of_type(jax.typeof(value), self.sizes)

    def layouts(self, values: Iterable[Any]) -> list[Layout]:
        return [self.layout(value) for value in values]

    def reshard(self, value: Any, layout: Layout) -> Any:
        """The value in a layout; nothing where it lies so already."""
        if self.layout(value) == layout:
            return value
        return jax.sharding.reshard(value, self.sharding(layout))

    def reshard_all(self, values: Values, wanted: Sequence[Layout]) -> list[Any]:
        return [self.reshard(*pair) for pair in zip(values, wanted, strict=True)]

    def relaid(self, values: Values) -> list[Any]:
        """Values with those of one repeated number as another of their shape lies."""
        fixed = [value for value in values if id(value) not in self.repeated]
        like = {jax.typeof(value).shape: self.layout(value) for value in fixed}
        return [
            self.reshard(value, like[value.shape])
            if id(value) in self.repeated and value.shape in like
            else value
            for value in values
        ]

    def automatic(
        self, function: Callable[..., Values], values: Values, results: Sequence[Layout]
    ) -> list[Any]:
        """A function left to the compiler, with its results in given layouts."""
        shardings = tuple(self.sharding(layout) for layout in results)

        def region(*values: Any) -> tuple[Any, ...]:
            return tuple(function(*values))

        left_alone: Any = jax.sharding.auto_axes(region, out_sharding=shardings)
        return [*left_alone(*values)]


def spec_of(leaf: jax.ShapeDtypeStruct) -> PartitionSpec:
    """Of a shape's sharding; whole where it has none."""
    sharding = leaf.sharding
    return sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
