"""The mesh on real pods, as the TPU compiler's library describes their devices: no TPU is needed.

    uv run --group tpu_compiler pytest -m tpu_compiler

Not selected by default: libtpu is large. Where it is selected, nothing is skipped.
"""

import itertools
from typing import Any

import numpy as np
import pytest

from tests.support.jobs import corpus_of, job_of
from tests.support.sampling import sampled
from tests.support.worlds import mesh_of, slice_world
from trainer.analysis import topology
from trainer.contract.planning import accelerators, mesh_layout
from trainer.contract.planning.planner import resolve
from trainer.distributed import mesh as meshes

pytestmark = pytest.mark.tpu_compiler
CASES = {
    f"{name} x {slices}, tensor {tensor}": (name, slices, tensor)
    for name, slices in [
        ("v2-8", 1), ("v3-32", 1), ("v4-8", 1), ("v4-16", 1), ("v4-32", 1), ("v4-32", 2),
        ("v4-128", 4), ("v4-1024", 1), ("v4-8192", 1), ("v5e-8", 1), ("v5e-16", 2), ("v5e-256", 4),
        ("v5p-64", 1), ("v5p-64", 2), ("v5p-512", 1), ("v6e-8", 1), ("v6e-16", 4), ("v6e-256", 1),
        ("v7x-8", 1), ("v7x-128", 2),
    ]
    for tensor in (1, 2, 4, 8)
    if tensor <= accelerators.parse(name).devices
}  # fmt: skip
ALWAYS = [case for case, (_, _, tensor) in CASES.items() if tensor in (1, 4)]


def place(device: Any) -> tuple[int, ...]:
    return (*device.coords, getattr(device, "core_on_chip", None) or 0)


def distance(a: Any, b: Any) -> int:
    return sum(abs(x - y) for x, y in zip(place(a), place(b), strict=True))


@pytest.mark.parametrize(("name", "slices", "tensor"), sampled(CASES, ALWAYS))
def test_the_mesh_follows_the_wires_of_the_real_pod(name: str, slices: int, tensor: int) -> None:
    world = slice_world(name, slices)
    devices = topology.devices(world)
    job = job_of(
        mesh={"tensor": tensor},
        model={"heads": 8, "kv_heads": 8},
        data={"global_batch": world.devices},
    )
    mesh = meshes.build(resolve(job, world, corpus_of(job)), devices)
    fsdp = len(devices) // slices // tensor
    assert mesh.shape == mesh_of(data=slices, fsdp=fsdp, tensor=tensor)
    assert {device.id for device in mesh.devices.flat} == {device.id for device in devices}
    for on_one_slice in mesh.devices.reshape(slices, -1):
        assert len({getattr(device, "slice_index", 0) for device in on_one_slice.flat}) == 1
    for group in mesh.devices.reshape(-1, tensor):
        assert all(distance(a, b) == 1 for a, b in itertools.pairwise(group))
        on_hosts = {device.process_index for device in group}
        assert len(on_hosts) == max(1, tensor // world.devices_per_host)


@pytest.mark.parametrize("name", sorted({name for name, _, _ in CASES.values()}))
def test_simulated_devices_are_numbered_as_the_real_ones(name: str) -> None:
    world = slice_world(name, 1)
    assert world.topology
    real = sorted(topology.devices(world), key=lambda device: (device.process_index, device.id))
    dims = [*range(len(world.topology)), -1]
    places = [tuple(np.array(place(device))[dims]) for device in real]
    assert places == mesh_layout.device_coords(world)
    counts = [device.process_index for device in real]
    assert counts == [n // world.devices_per_host for n in range(world.devices)]
