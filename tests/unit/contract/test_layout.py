"""The order of devices in the mesh follows the wires."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.worlds import TWO_V5E_16, V4_32, V5E_16, cpu_world, mesh_of, tpu_world
from trainer.contract.planning.mesh_layout import device_coords, device_order, fsdp_rows
from trainer.contract.planning.plan import World


@st.composite
def worlds_and_meshes(draw: st.DrawFn) -> tuple[World, dict[str, int]]:
    host = draw(st.sampled_from([(2, 2, 1), (2, 2), (1, 1)]))
    grid = tuple(draw(st.sampled_from([1, 2, 4])) for _ in host)
    slices = draw(st.sampled_from([1, 2]))
    topology = tuple(h * g for h, g in zip(host, grid, strict=True))
    world = tpu_world("v4-8", topology, host, slices)
    per_slice = math.prod(topology)
    tensor = draw(st.sampled_from([n for n in range(1, per_slice + 1) if per_slice % n == 0]))
    rest = per_slice // tensor
    data = draw(st.sampled_from([n for n in range(1, rest + 1) if rest % n == 0]))
    context = draw(st.sampled_from([n for n in (1, 2, 4) if rest // data % n == 0]))
    fsdp = rest // data // context
    return world, mesh_of(data=data * slices, fsdp=fsdp, context=context, tensor=tensor)


def distance(a: tuple[int, ...], b: tuple[int, ...]) -> int:
    return sum(abs(x - y) for x, y in zip(a, b, strict=True))


@given(worlds_and_meshes())
def test_every_device_stands_in_the_mesh_once(case: tuple[World, dict[str, int]]) -> None:
    world, mesh = case
    assert sorted(device_order(world, mesh)) == list(range(world.devices))


@given(worlds_and_meshes())
def test_a_tensor_group_walks_over_neighbours(case: tuple[World, dict[str, int]]) -> None:
    world, mesh = case
    order, coords = device_order(world, mesh), device_coords(world)
    for start in range(0, len(order), mesh["tensor"]):
        group = [coords[device % len(coords)] for device in order[start : start + mesh["tensor"]]]
        assert all(distance(a, b) == 1 for a, b in itertools.pairwise(group))


@given(worlds_and_meshes())
def test_a_tensor_group_covers_as_few_hosts_as_it_can(case: tuple[World, dict[str, int]]) -> None:
    world, mesh = case
    order, tensor = device_order(world, mesh), mesh["tensor"]
    fewest = max(1, tensor // world.devices_per_host)
    for start in range(0, len(order), tensor):
        hosts = {device // world.devices_per_host for device in order[start : start + tensor]}
        assert len(hosts) == fewest


def test_rows_and_columns_of_gradient_scatter_are_lines_of_chips() -> None:
    world, mesh = tpu_world("v5e-128", (8, 16), (2, 2), slices=2), mesh_of(data=2, fsdp=128)
    coords = [device_coords(world)[device] for device in device_order(world, mesh)[:128]]
    assert fsdp_rows(world, mesh) == 8
    rows = [coords[start : start + 16] for start in range(0, 128, 16)]
    assert rows == [[(x, y, 0) for y in range(16)] for x in range(8)]
    assert fsdp_rows(TWO_V5E_16, mesh_of(data=2, fsdp=16)) == 4


@pytest.mark.parametrize(
    ("world", "mesh"),
    [
        (tpu_world("v5e-16", (4, 4), (2, 2)), mesh_of(fsdp=16)),
        (tpu_world("v5e-64", (8, 8), (2, 2), slices=2), mesh_of(fsdp=128)),
        (tpu_world("v5e-64", (8, 8), (2, 2)), mesh_of(fsdp=16, tensor=4)),
        (tpu_world("v6e-64", (8, 8), (2, 2)), mesh_of(fsdp=64)),
    ],
    ids=["few chips", "over slices", "a part of a slice", "another generation"],
)
def test_gradients_are_scattered_at_once_elsewhere(world: World, mesh: dict[str, int]) -> None:
    assert fsdp_rows(world, mesh) == 1


def test_data_stays_on_slices() -> None:
    order = device_order(TWO_V5E_16, mesh_of(data=2, fsdp=16))
    assert set(order[:16]) == set(range(16))
    assert set(order[16:]) == set(range(16, 32))


def test_fsdp_crosses_slices_when_data_does_not() -> None:
    order = device_order(TWO_V5E_16, mesh_of(fsdp=32))
    assert {device // 16 for device in order[:16]} == {0}


def test_slices_that_do_not_divide_are_refused() -> None:
    world = TWO_V5E_16.model_copy(update={"slices": 3})
    with pytest.raises(ValueError, match="3 slices cannot be split over data 2 and fsdp 16"):
        device_order(world, mesh_of(data=2, fsdp=16))


def test_without_a_torus_devices_keep_their_order() -> None:
    mesh = mesh_of(data=2, fsdp=2, tensor=2)
    assert device_order(cpu_world(2, 4), mesh) == tuple(range(8))


def test_a_v4_32_is_numbered_as_libtpu_numbers_it() -> None:
    # topologies.get_topology_desc("v4:2x2x4", megacore, host bounds 2x2x1), libtpu 0.0.42.1
    host_0 = [(0, 0, 0), (1, 0, 0), (0, 1, 0), (1, 1, 0)]
    expected = [(x, y, z + host) for host in range(4) for x, y, z in host_0]
    assert [chip[:3] for chip in device_coords(V4_32)] == expected


def test_a_v5e_16_is_numbered_as_libtpu_numbers_it() -> None:
    # topologies.get_topology_desc("v5e:4x4", host bounds 2x2x1), libtpu 0.0.42.1
    host_0 = [(0, 0), (1, 0), (0, 1), (1, 1)]
    corners = [(0, 0), (2, 0), (0, 2), (2, 2)]
    expected = [(x + left, y + top) for left, top in corners for x, y in host_0]
    assert [chip[:2] for chip in device_coords(V5E_16)] == expected
