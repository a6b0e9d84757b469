"""A picture of one array on the mesh: which devices hold which part of it.

Like `jax.debug.visualize_array_sharding`, but drawn from the plan alone, before devices exist.
"""

import itertools
import math
from collections.abc import Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase

from rich.console import Group
from rich.table import Table
from rich.text import Text

from launcher.core.errors import UsageError
from launcher.ui.plan_view import host_color
from trainer.contract.planning import sharding_rules
from trainer.contract.planning.plan import ArrayPlan, Plan

Block = tuple[int, ...]
"""Index of a part along each dim that is split."""
SHOWN = 8
"""Maximum number of devices named per part."""


class NoSuchArrayError(UsageError):
    """Raised when no array has the given name, with similar names."""


def matching(plan: Plan, pattern: str) -> list[ArrayPlan]:
    """Returns the parameters that match a name or a pattern, e.g. layers.attention.*.

    Raises NoSuchArrayError.
    """
    found = [array for array in plan.parameters if fnmatchcase(array.name, pattern)]
    if not found:
        names = [array.name for array in plan.parameters]
        near = get_close_matches(pattern, names, n=3, cutoff=0.4)
        raise NoSuchArrayError(
            f"{pattern}: no parameter has this name"
            + (f"; near it are {', '.join(near)}" if near else "")
            + " (launch plan --shardings names all)"
        )
    return found


def holders(array: ArrayPlan, plan: Plan) -> dict[Block, list[int]]:
    """Returns the numbers of the devices that hold each part."""
    split = [sharding_rules.joined_axes(entry) for entry in array.spec if entry]
    held: dict[Block, list[int]] = {}
    places = itertools.product(*(range(size) for size in plan.mesh.values()))
    for device, place in zip(plan.device_order, places, strict=True):
        at = dict(zip(plan.mesh, place, strict=True))
        block = tuple(_index(axes, at, plan) for axes in split)
        held.setdefault(block, []).append(device)
    return {block: sorted(held[block]) for block in sorted(held)}


def _index(axes: Sequence[str], at: dict[str, int], plan: Plan) -> int:
    """Returns the index of a part that several mesh axes split together."""
    index = 0
    for axis in axes:
        index = index * plan.mesh[axis] + at[axis]
    return index


def picture(array: ArrayPlan, plan: Plan) -> Group:
    """Draws a cell for each part: the last split dim runs to the right, the others run down."""
    held = holders(array, plan)
    shape = "x".join(map(str, array.shape))
    if len(held) == 1:
        return Group(Text(f"{array.name} {shape}: whole on every device"))
    heading = Text(f"{array.name} {shape}: {len(held)} parts, each with its devices")
    *above, last = [dim for dim, axis in enumerate(array.spec) if axis]
    columns = sorted({block[-1:] for block in held})
    table = Table("", *(_labels(array, plan, [last], one) for one in columns), show_lines=True)
    for row in sorted({block[:-1] for block in held}):
        cells = [_cell(held[(*row, *column)], plan) for column in columns]
        table.add_row(_labels(array, plan, above, row), *cells)
    return Group(heading, table)


def _labels(array: ArrayPlan, plan: Plan, dims: Sequence[int], block: Block) -> str:
    """Returns the logical axis and the index range of a part along each of the dims."""
    labels = []
    for dim, part in zip(dims, block, strict=True):
        size = math.ceil(array.shape[dim] / sharding_rules.parts(array.spec[dim], plan.mesh))
        labels.append(f"{array.axes[dim]} {part * size}:{(part + 1) * size}")
    return ", ".join(labels)


def _cell(devices: list[int], plan: Plan) -> str:
    more = f" … ({len(devices)})" if len(devices) > SHOWN else ""
    color = host_color(devices[0] // plan.world.devices_per_host)
    return f"[{color}]{' '.join(map(str, devices[:SHOWN]))}{more}[/]"
