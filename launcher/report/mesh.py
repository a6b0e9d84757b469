"""The mesh of a plan on hosts, and the hosts in the torus."""

import math
from dataclasses import dataclass

from launcher.core.formatting import describe_hosts
from trainer.contract.planning import mesh_layout, sharding_rules
from trainer.contract.planning.plan import BasePlan, Plan, World

MOST_DEVICES = 512
"""Maximum number of devices that are drawn."""
COLORS = 8
"""Number of colours for hosts."""
COLUMN_AXIS = "fsdp"


@dataclass(frozen=True)
class Cell:
    """A device at one coordinate of the mesh."""

    host: int
    color: int
    title: str


@dataclass(frozen=True)
class Row:
    label: str
    cells: list[Cell]


@dataclass(frozen=True)
class Plane:
    """The chips of a slice at one position along the torus's third axis."""

    label: str
    rows: list[list[Cell]]
    """A row for each position along the second axis; the first axis runs along the row."""


@dataclass(frozen=True)
class Mesh:
    """The mesh of one or more attempts."""

    attempts: list[int]
    world: str
    mesh: str
    rows: list[Row]
    """Rows of devices; empty for a program without a mesh, and for very large ones."""
    columns: int
    planes: list[Plane]
    """The torus of each slice; empty without one, and for very large ones."""


def meshes(plans: dict[int, BasePlan]) -> list[Mesh]:
    """Returns the meshes of a run in the order of its attempts, each different one once."""
    attempts: dict[object, list[int]] = {}
    for attempt, plan in plans.items():
        attempts.setdefault(_shape(plan), []).append(attempt)
    return [_mesh(same, plans[same[0]]) for same in attempts.values()]


def describe(world: World) -> str:
    """Describes the hosts and devices of a world in one line."""
    text = describe_hosts(world)
    if world.accelerator != "cpu":
        text += f" of {world.accelerator}"
    if world.topology:
        text += f", torus {'x'.join(map(str, world.topology))}"
    if world.slices > 1:
        text += f", {world.slices} slices"
    return text + (" (simulated)" if world.simulated else "")


def _shape(plan: BasePlan) -> tuple[object, ...]:
    mesh = (*plan.mesh.items(), plan.device_order) if isinstance(plan, Plan) else ()
    return plan.world, mesh


def _mesh(attempts: list[int], plan: BasePlan) -> Mesh:
    world = plan.world
    is_drawn = world.devices <= MOST_DEVICES
    return Mesh(
        attempts=attempts,
        world=describe(world),
        mesh=sharding_rules.mesh_text(plan.mesh) if isinstance(plan, Plan) else "",
        rows=_rows(plan) if isinstance(plan, Plan) and is_drawn else [],
        columns=plan.mesh[COLUMN_AXIS] if isinstance(plan, Plan) else 0,
        planes=_planes(world) if world.topology and is_drawn else [],
    )


def _rows(plan: Plan) -> list[Row]:
    """Returns a row for each coordinate of the other axes; `fsdp` runs along the row."""
    names = list(plan.mesh)
    at = names.index(COLUMN_AXIS)
    sizes = list(plan.mesh.values())
    inner = math.prod(sizes[at + 1 :])
    coords = mesh_layout.device_coords(plan.world) if plan.world.topology else []
    rows = []
    for outer in range(math.prod(sizes[:at])):
        for inside in range(inner):
            numbers = [(outer * sizes[at] + c) * inner + inside for c in range(sizes[at])]
            label = _label(plan.mesh, outer, inside)
            rows.append(
                Row(label, [_cell(plan.world, plan.device_order[n], coords) for n in numbers])
            )
    return rows


def _label(mesh: dict[str, int], outer: int, inside: int) -> str:
    """Returns the coordinates of a row: "data 1, tensor 0"; only of axes above size 1."""
    parts = []
    names = list(mesh)
    at = names.index(COLUMN_AXIS)
    for axes, number in ((names[at + 1 :], inside), (names[:at], outer)):
        for axis in reversed(axes):
            number, place = divmod(number, mesh[axis])
            if mesh[axis] > 1:
                parts.insert(0, f"{axis} {place}")
    return ", ".join(parts)


def _cell(world: World, device: int, coords: list[tuple[int, ...]]) -> Cell:
    host = device // world.devices_per_host
    title = f"device {device} of host {host}"
    if coords:
        title += f", chip {_chip(coords[device % len(coords)])}"
    if world.slices > 1:
        title += f", slice {host // world.hosts_per_slice}"
    return Cell(host, host % COLORS, title)


def _planes(world: World) -> list[Plane]:
    """Returns the chips of each slice, plane by plane, each with its host."""
    coords = mesh_layout.device_coords(world)
    width, height, depth = (*(world.topology or ()), 1, 1)[:3]
    planes = []
    for number in range(world.slices):
        first = number * len(coords)
        at = {(*c[:-1], 0)[:3]: first + device for device, c in enumerate(coords)}
        for z in range(depth):
            parts = [f"slice {number}"] * (world.slices > 1) + [f"z {z}"] * (depth > 1)
            rows = [
                [_cell(world, at[x, y, z], coords) for x in range(width)] for y in range(height)
            ]
            planes.append(Plane(", ".join(parts), rows))
    return planes


def _chip(coords: tuple[int, ...]) -> str:
    """Returns the coordinates of a chip, without that of its core."""
    return f"({', '.join(map(str, coords[:-1]))})"
