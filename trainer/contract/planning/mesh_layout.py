"""The order of devices in the mesh, from a description of hosts and wires. Pure Python.

Real chips, the compiler's topology and simulated devices share one order, so a simulated pod has
the device order of the real one.
"""

import functools
import itertools
import math
from collections.abc import Iterator, Sequence

from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import World

Shape = tuple[int, ...]

SCATTERED_BY_ROWS, LEAST_CHIPS, LEAST_OF_SEVERAL = "v5e", 64, 16
"""TPU generation, and its smallest slices (in chips; for one slice, and for several) where the
compiler scatters over rows and columns of chips, but not over all chips in one collective. There it
would sum whole gradients, which is twice the bytes."""


def device_coords(world: World) -> list[tuple[int, ...]]:
    """Returns the torus position of each device of one slice: chip coordinates, then the core.

    The first coordinate varies fastest, over hosts and over the chips inside a host. libtpu numbers
    workers and chips in the same way.
    """
    assert world.topology and world.host_bounds, "only devices of a torus have coordinates"
    hosts = tuple(t // h for t, h in zip(world.topology, world.host_bounds, strict=True))
    cores = range(world.devices_per_host // math.prod(world.host_bounds))
    return [
        (*(h * b + c for h, b, c in zip(host, world.host_bounds, chip, strict=True)), core)
        for host in _first_fastest(hosts)
        for chip in _first_fastest(world.host_bounds)
        for core in cores
    ]


def device_order(world: World, mesh: dict[str, int]) -> tuple[int, ...]:
    """Returns device numbers in the C order of a mesh, whose axes are those of MESH_AXES.

    `pipeline` is split over the slices first, then `data` and `fsdp` if slices remain. Inside a
    slice `tensor` gets the nearest chips, then `context`, then `expert`. Raises ValueError when the
    slices do not divide over `pipeline`, `data` and `fsdp`.
    """
    outside = (mesh["pipeline"], mesh["data"], mesh["fsdp"])
    inside = (mesh["expert"], mesh["context"], mesh["tensor"])
    # A frozen World has a hash.
    return _order(world, outside, inside)  # pyright: ignore[reportArgumentType]


def over_islands(mesh: dict[str, int], islands: int) -> tuple[int, int, int]:
    """Returns the numbers of islands that `pipeline`, `data` and `fsdp` span.

    An island is a slice of TPUs, or a host of GPUs. What is left for `fsdp` may not divide it.
    """
    pipeline = math.gcd(mesh["pipeline"], islands)
    data = math.gcd(mesh["data"], islands // pipeline)
    return pipeline, data, islands // (pipeline * data)


def fsdp_rows(world: World, mesh: dict[str, int]) -> int:
    """Returns the number of chip rows that split `fsdp`, each with its own scatter; 1: no split."""
    is_whole_slice = mesh["fsdp"] * world.slices == world.devices
    by_rows = is_whole_slice and _scatters_by_rows(world, mesh["fsdp"])
    return min(world.topology or (1,)) if by_rows else 1


def _scatters_by_rows(world: World, fsdp: int) -> bool:
    """Returns whether `fsdp` covers one or more slices that are large enough to scatter by rows."""
    least = LEAST_CHIPS if world.slices == 1 else LEAST_OF_SEVERAL
    per_slice = world.devices // world.slices
    return (
        world.topology is not None
        and accelerators.parse(world.accelerator).generation == SCATTERED_BY_ROWS
        and fsdp >= per_slice >= least
    )


@functools.lru_cache(maxsize=256)
def _order(world: World, outside: Shape, inside: Shape) -> tuple[int, ...]:
    """Computes `device_order`. Cached: 4,096 chips take 50 ms, and a search repeats meshes."""
    pipeline, data, fsdp = outside
    slices = over_islands({"pipeline": pipeline, "data": data}, world.slices)
    if fsdp % slices[-1]:
        before = "" if pipeline == 1 else f"pipeline {pipeline}, "
        product = "data * fsdp" if pipeline == 1 else "pipeline * data * fsdp"
        raise ValueError(
            f"{world.slices} slices cannot be split over {before}data {data} and fsdp {fsdp}. "
            f"Make {product} a multiple of the number of slices"
        )
    in_slice = tuple(size // parts for size, parts in zip(outside, slices, strict=True))
    one_slice = _slice_order(world, (*in_slice, *inside))
    per_slice, per_column = len(one_slice), math.prod(inside)

    def first_device(index: Shape) -> tuple[int, int]:
        """Returns the slice of an index of the outer axes, and its place in `one_slice`."""
        inner = [divmod(place, size) for place, size in zip(index, in_slice, strict=True)]
        number = _flat([slice_place for slice_place, _ in inner], slices)
        return number, per_column * _flat([place for _, place in inner], in_slice)

    firsts = map(first_device, itertools.product(*map(range, outside)))
    return tuple(
        number * per_slice + one_slice[first + position]
        for number, first in firsts
        for position in range(per_column)
    )


def _flat(index: Sequence[int], shape: Shape) -> int:
    """Returns the number of an index in the C order of a shape."""
    number = 0
    for place, size in zip(index, shape, strict=True):
        number = number * size + place
    return number


def _slice_order(world: World, mesh_shape: Shape) -> list[int]:
    """Returns the device numbers of one slice in the C order of `mesh_shape`."""
    if not world.topology:
        return list(range(math.prod(mesh_shape)))
    coords = device_coords(world)
    number = {position: device for device, position in enumerate(coords)}
    physical = tuple(max(c[dim] for c in coords) + 1 for dim in range(len(coords[0])))
    host = (*(world.host_bounds or ()), physical[-1])
    # From the innermost axis outwards: each axis takes a box of what the inner axes left over.
    boxes: list[Shape] = []
    grid, host_left = physical, host
    for size in reversed(mesh_shape):
        box = _best_box(size, grid, host_left)
        boxes.insert(0, box)
        grid = tuple(g // b for g, b in zip(grid, box, strict=True))
        host_left = tuple(max(1, h // b) for h, b in zip(host_left, box, strict=True))
    reverses = not _scatters_by_rows(world, mesh_shape[2])
    walks = [_walk(box, reverses=reverses) for box in boxes]
    return [number[_position(steps, boxes)] for steps in itertools.product(*walks)]


def _best_box(size: int, grid: Shape, host: Shape) -> Shape:
    """Returns the box of `size` positions with the fewest hosts, then with the shortest sides."""

    def cost(box: Shape) -> tuple[object, ...]:
        hosts = math.prod(-(-b // h) for b, h in zip(box, host, strict=True))
        return hosts, sum(box), tuple(-b for b in box)

    return min(_boxes(size, grid), key=cost)


def _boxes(size: int, grid: Shape) -> Iterator[Shape]:
    """Yields every box of `size` positions whose sides divide the sides of `grid`."""
    if not grid:
        if size == 1:
            yield ()
        return
    for side in range(1, grid[0] + 1):
        if grid[0] % side == 0 and size % side == 0:
            for rest in _boxes(size // side, grid[1:]):
                yield (side, *rest)


def _walk(box: Shape, *, reverses: bool) -> list[Shape]:
    """Returns all positions of a box, back and forth along its long sides, each beside the last.

    Short sides change slowest, so a box of 2 x n closes into a ring. Without `reverses`, every row
    runs in the same direction.
    """
    dims = sorted(range(len(box)), key=lambda dim: box[dim])
    positions: list[list[int]] = [[0] * len(box)]
    for dim in reversed(dims):
        longer: list[list[int]] = []
        for step in range(box[dim]):
            for position in reversed(positions) if reverses and step % 2 else positions:
                longer.append([*position[:dim], step, *position[dim + 1 :]])
        positions = longer
    return [tuple(position) for position in positions]


def _position(steps: Sequence[Shape], boxes: Sequence[Shape]) -> Shape:
    """Returns the physical position of a mesh index: outer boxes count in units of inner ones."""
    position = (0,) * len(boxes[0])
    for step, box in zip(steps, boxes, strict=True):
        position = tuple(p * b + s for p, b, s in zip(position, box, step, strict=True))
    return position


def _first_fastest(shape: Shape) -> list[Shape]:
    return [tuple(reversed(c)) for c in itertools.product(*(range(n) for n in reversed(shape)))]
