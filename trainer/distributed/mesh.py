"""The planned mesh over the devices that JAX finds, and the shardings of arrays on it."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from trainer.contract.planning import mesh_layout, sharding_rules
from trainer.contract.planning.plan import Plan, World

Device = Any
"""A jax.Device, which type checkers treat as a variable."""


def build(plan: Plan, devices: Sequence[Device] | None = None) -> Mesh:
    """Builds a plan's mesh over `devices` (default: all). Raises ValueError for unplanned ones."""
    numbered = _numbered(plan.world, list(jax.devices() if devices is None else devices))
    ordered = np.array([numbered[number] for number in plan.device_order], dtype=object)
    # Auto: the compiler propagates shardings from pinned arrays. `jax.make_mesh` would make the
    # axes Explicit; then each look-up and tensor-parallel product needs its own sharding.
    sizes = tuple(plan.mesh[axis] for axis in sharding_rules.MESH_AXES)
    axis_types = (AxisType.Auto,) * len(sizes)
    return Mesh(ordered.reshape(sizes), sharding_rules.MESH_AXES, axis_types=axis_types)


def parameter_shardings(plan: Plan, mesh: Mesh | AbstractMesh) -> dict[str, NamedSharding]:
    """Returns parameter name -> sharding."""
    return {
        array.name: NamedSharding(mesh, PartitionSpec(*sharding_rules.mesh_axes(array.spec)))
        for array in plan.parameters
    }


def replicated(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec())


def of_one_device(mesh: Mesh) -> Mesh:
    """Returns a mesh with the same axes that has only the first device of process 0."""
    first = min(mesh.devices.flat, key=lambda device: (device.process_index, device.id))
    alone = np.array(first, dtype=object).reshape((1,) * mesh.devices.ndim)
    return Mesh(alone, mesh.axis_names, axis_types=(AxisType.Auto,) * alone.ndim)


def copy_on(sharding: NamedSharding, array: jax.Array) -> jax.Array:
    """Returns a replicated array on the only device of a sharding, without a copy of its data."""
    (device,) = sharding.device_set
    own = next(shard.data for shard in array.addressable_shards if shard.device == device)
    return jax.make_array_from_single_device_arrays(array.shape, sharding, [own])


def _numbered(world: World, devices: list[Device]) -> list[Device]:
    """Returns devices in the plan's order: by process, and by local order within a process."""
    if len(devices) != world.devices:
        raise ValueError(f"the plan is for {world.devices} devices, but JAX found {len(devices)}")
    if devices[0].platform == "tpu" and world.topology:
        devices = _by_coordinates(world, devices)
    else:
        devices = sorted(devices, key=lambda device: (device.process_index, device.id))
    for number, device in enumerate(devices):
        planned = number // world.devices_per_process
        if device.process_index != planned:
            raise ValueError(
                f"device {number} is planned on process {planned}, but {device} is on process "
                f"{device.process_index}"
            )
    return devices


def _by_coordinates(world: World, devices: list[Device]) -> list[Device]:
    """Returns TPU devices in the order that the plan gives to their positions on the torus."""
    found = {_position(world, device): device for device in devices}
    planned = [
        (number, coords)
        for number in range(world.slices)
        for coords in mesh_layout.device_coords(world)
    ]
    missing = [position for position in planned if position not in found]
    if missing:
        raise ValueError(
            f"JAX found no chip at the planned (slice, coordinates) {missing[0]}, "
            f"only at {sorted(found)}"
        )
    return [found[position] for position in planned]


def _position(world: World, device: Device) -> tuple[int, tuple[int, ...]]:
    """Returns the slice of a TPU device, and its chip's coordinates and core."""
    assert world.topology
    coords = tuple(device.coords)[: len(world.topology)]
    core = getattr(device, "core_on_chip", 0)
    return getattr(device, "slice_index", 0), (*coords, core)
