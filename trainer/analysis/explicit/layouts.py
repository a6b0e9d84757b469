"""The layout of an array as plain data: for each dim, the mesh axes that split it.

It also has arrays with explicit types on an abstract mesh, and moves them between layouts.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

Layout = tuple[tuple[str, ...], ...]
"""Mesh axes per dim. Axes of size 1 are left out: they split nothing."""
Sizes = Mapping[str, int]
"""Number of devices along each mesh axis."""


def of_spec(spec: PartitionSpec, dims: int, sizes: Sizes) -> Layout:
    """Returns the layout of an array of `dims` dims under a sharding's spec."""
    padded = [*spec, *[None] * (dims - len(spec))]
    each = (entry if isinstance(entry, tuple) else (entry,) for entry in padded)
    return tuple(tuple(axis for axis in axes if sizes.get(axis, 1) > 1) for axes in each)


def of_type(aval: Any, sizes: Sizes) -> Layout:
    """Returns the layout in an abstract value; whole for one that is not an array."""
    sharding = getattr(aval, "sharding", None)
    dims = len(getattr(aval, "shape", ()))
    return of_spec(sharding.spec, dims, sizes) if sharding else whole(dims)


def whole(dims: int) -> Layout:
    """Returns the layout of an array that is not split."""
    return ((),) * dims


def spec(layout: Layout) -> PartitionSpec:
    """Returns JAX's spec of a layout."""
    return PartitionSpec(*(axes[0] if len(axes) == 1 else axes or None for axes in layout))


def axes_of(layout: Layout) -> set[str]:
    """Returns all mesh axes that split some dim."""
    return {axis for axes in layout for axis in axes}


def once(layout: Layout, taken: Sequence[str] = ()) -> Layout:
    """Returns a layout in which each axis splits one dim, its first; `taken` axes split none."""
    seen = set(taken)
    kept: list[tuple[str, ...]] = []
    for axes in layout:
        kept.append(tuple(axis for axis in axes if axis not in seen))
        seen |= set(axes)
    return tuple(kept)


def divides(layout: Layout, shape: Sequence[int], sizes: Sizes) -> bool:
    """Returns whether every dim is split into equal parts, and no axis splits two dims."""
    flat = [axis for axes in layout for axis in axes]
    each = zip(shape, layout, strict=True)
    return len(flat) == len(set(flat)) and all(dim % parts(axes, sizes) == 0 for dim, axes in each)


def parts(axes: Sequence[str], sizes: Sizes) -> int:
    """Returns the number of parts that some axes split a dim into."""
    return math.prod(sizes[axis] for axis in axes)


def shard_bytes(aval: Any, layout: Layout, sizes: Sizes) -> int:
    """Returns the bytes of an array on one device."""
    ways = math.prod(parts(axes, sizes) for axes in layout)
    return math.prod(aval.shape) * aval.dtype.itemsize // ways


def moved_bytes(aval: Any, old: Layout, new: Layout, sizes: Sizes) -> int:
    """Returns the bytes that a device receives for a new layout; the mean over devices."""
    everything = math.prod(aval.shape) * aval.dtype.itemsize
    kept = everything * _kept_share(old, new, tuple(sizes.items()))
    return shard_bytes(aval, new, sizes) - round(kept)


def summed_bytes(aval: Any, axes: Sequence[str], layout: Layout, sizes: Sizes) -> int:
    """Returns the bytes that a device receives when a ring adds up the parts along `axes`."""
    ways = parts(axes, sizes)
    return 2 * shard_bytes(aval, layout, sizes) * (ways - 1) // ways


def text(aval: Any, layout: Layout) -> str:
    """Returns a type as JAX writes it, `bfloat16[32@fsdp,128]`."""
    dims = (f"{dim}{_at(axes)}" for dim, axes in zip(aval.shape, layout, strict=True))
    return f"{aval.dtype.name}[{','.join(dims)}]"


@cache
def _kept_share(old: Layout, new: Layout, sizes: tuple[tuple[str, int], ...]) -> Fraction:
    """Returns the share of an array that a device has in both layouts; the mean over devices."""
    lengths = dict(sizes)
    axes = sorted(axes_of(old) | axes_of(new))
    devices = [
        dict(zip(axes, place, strict=True))
        for place in itertools.product(*(range(lengths[axis]) for axis in axes))
    ]
    dims = list(zip(old, new, strict=True))
    common = sum(math.prod(_overlap(*dim, device, lengths) for dim in dims) for device in devices)
    units = math.prod(parts(a, lengths) * parts(b, lengths) for a, b in dims)
    return Fraction(common, units * len(devices))


def _overlap(
    old: tuple[str, ...], new: tuple[str, ...], device: Mapping[str, int], sizes: Sizes
) -> int:
    """Returns the length that a device has in both layouts, of a dim of length parts x parts."""
    wide, narrow = parts(new, sizes), parts(old, sizes)
    first, second = _index(old, device, sizes) * wide, _index(new, device, sizes) * narrow
    return max(0, min(first + wide, second + narrow) - max(first, second))


def _index(axes: tuple[str, ...], device: Mapping[str, int], sizes: Sizes) -> int:
    """Returns the index of a device's part of a dim."""
    index = 0
    for axis in axes:
        index = index * sizes[axis] + device[axis]
    return index


def _at(axes: tuple[str, ...]) -> str:
    if not axes:
        return ""
    return f"@{axes[0]}" if len(axes) == 1 else f"@({','.join(axes)})"


Values = Sequence[Any]
Asked = Sequence[Layout | None]
"""Layouts that later constraints request of results; None where no constraint does."""


@dataclass(frozen=True)
class ExplicitMesh:
    """A mesh with explicit axis types: shardings are part of an array's type."""

    mesh: AbstractMesh
    sizes: Sizes
    repeated: dict[int, Any] = field(default_factory=dict)
    """Arrays of one repeated value, by id. They take any layout that is needed: `zeros_like` and
    similar functions create them in it under explicit types."""

    @classmethod
    def of(cls, mesh: AbstractMesh) -> "ExplicitMesh":
        """Returns an explicit mesh with the axes of an automatic one."""
        kinds = (AxisType.Explicit,) * len(mesh.axis_names)
        explicit = AbstractMesh(mesh.axis_sizes, mesh.axis_names, axis_types=kinds)
        return cls(explicit, dict(mesh.shape))

    def struct(self, leaf: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
        """Returns the same shape with its layout in its type."""
        sharding = self.sharding(of_spec(spec_of(leaf), len(leaf.shape), self.sizes))
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)

    def sharding(self, layout: Layout) -> NamedSharding:
        return NamedSharding(self.mesh, spec(layout))

    def layout(self, value: Any) -> Layout:
        """Returns the layout of an array, a tracer or a shape; whole for any other value."""
        return of_type(jax.typeof(value), self.sizes)

    def layouts(self, values: Iterable[Any]) -> list[Layout]:
        return [self.layout(value) for value in values]

    def reshard(self, value: Any, layout: Layout) -> Any:
        """Moves a value to a layout, unless it already has that layout."""
        if self.layout(value) == layout:
            return value
        return jax.sharding.reshard(value, self.sharding(layout))

    def reshard_all(self, values: Values, wanted: Sequence[Layout]) -> list[Any]:
        return [self.reshard(*pair) for pair in zip(values, wanted, strict=True)]

    def relaid(self, values: Values) -> list[Any]:
        """Gives arrays of one repeated value the layout of another value of their shape."""
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
        """Runs a function whose layouts the compiler chooses, except those of its results."""
        shardings = tuple(self.sharding(layout) for layout in results)

        def region(*values: Any) -> tuple[Any, ...]:
            return tuple(function(*values))

        left_alone: Any = jax.sharding.auto_axes(region, out_sharding=shardings)
        return [*left_alone(*values)]


def spec_of(leaf: jax.ShapeDtypeStruct) -> PartitionSpec:
    """Returns the spec of a shape's sharding; whole when it has none."""
    sharding = leaf.sharding
    return sharding.spec if isinstance(sharding, NamedSharding) else PartitionSpec()
