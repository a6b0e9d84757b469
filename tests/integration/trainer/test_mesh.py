"""Devices take the places that the plan gave them, or the run is refused."""

import itertools
from dataclasses import dataclass

import jax
import pytest

from tests.support.jobs import corpus_of, job_of, world_of
from tests.support.worlds import mesh_of
from trainer.contract.planning import mesh_layout
from trainer.contract.planning.planner import resolve
from trainer.distributed import mesh

V4_16 = {"platform": "tpu", "accelerator": "v4-16", "topology": (2, 2, 2),
         "host_bounds": (2, 2, 1)}  # fmt: skip


@dataclass(frozen=True)
class Chip:
    """What jax says of a TPU device."""

    id: int
    process_index: int
    coords: tuple[int, int, int]
    core_on_chip: int = 0
    slice_index: int = 0
    platform: str = "tpu"


def _plan(world, **changes):
    job = job_of(**changes)
    return resolve(job, world, corpus_of(job))


def _chips(ids):
    """The chips of two hosts of v4, numbered by the runtime in any order."""
    places = [(z, (x, y, z)) for z, y, x in itertools.product(range(2), repeat=3)]
    return [Chip(number, host, coords) for number, (host, coords) in zip(ids, places, strict=True)]


def test_axes_have_the_planned_sizes_and_order():
    plan = _plan(world_of(1, 8), mesh={"data": 2, "tensor": 2})
    built = mesh.build(plan)
    assert dict(built.shape) == mesh_of(data=2, fsdp=2, tensor=2)
    assert [device.id for device in built.devices.flat] == list(plan.device_order)


def test_another_number_of_devices_is_refused():
    plan = _plan(world_of(1, 4))
    with pytest.raises(ValueError, match="the plan is for 4 devices"):
        mesh.build(plan, jax.devices()[:2])


def test_chips_are_placed_by_their_coordinates_not_by_their_numbers():
    plan = _plan(world_of(2, 4, **V4_16), mesh={"tensor": 2})
    coords = mesh_layout.device_coords(plan.world)
    for ids in (range(8), [3, 1, 2, 0, 7, 6, 5, 4]):
        built = mesh.build(plan, _chips(ids))
        placed = [(*chip.coords, chip.core_on_chip) for chip in built.devices.flat]
        assert placed == [coords[number] for number in plan.device_order]


def test_chips_of_another_torus_are_refused():
    plan = _plan(world_of(2, 4, **V4_16))
    chips = [
        Chip(chip.id, chip.process_index, (*chip.coords[:2], 2 * chip.coords[2]))
        for chip in _chips(range(8))
    ]
    with pytest.raises(ValueError, match="JAX found no chip at"):
        mesh.build(plan, chips)


def test_a_chip_on_another_process_is_refused():
    plan = _plan(world_of(2, 4, **V4_16))
    swapped = [Chip(chip.id, 1 - chip.process_index, chip.coords) for chip in _chips(range(8))]
    with pytest.raises(ValueError, match="planned on process 0"):
        mesh.build(plan, swapped)
