"""Worlds and jobs that the tests of the plan share."""

from typing import Any

from trainer.contract.config.job import Job
from trainer.contract.planning import accelerators
from trainer.contract.planning.plan import Corpus, World
from trainer.contract.planning.sharding_rules import MESH_AXES

CORPUS = Corpus(source="stdlib", sha256=None)


def cpu_world(hosts: int, devices_per_host: int, processes_per_host: int = 1) -> World:
    return World(
        accelerator="cpu",
        platform="cpu",
        simulated=True,
        slices=1,
        hosts_per_slice=hosts,
        devices_per_host=devices_per_host,
        processes_per_host=processes_per_host,
        topology=None,
        host_bounds=None,
    )


def tpu_world(
    accelerator: str, topology: tuple[int, ...], host_bounds: tuple[int, ...], slices: int = 1
) -> World:
    hosts = devices = 1
    for chips, on_host in zip(topology, host_bounds, strict=True):
        hosts *= chips // on_host
        devices *= on_host
    return World(
        accelerator=accelerator,
        platform="tpu",
        simulated=True,
        slices=slices,
        hosts_per_slice=hosts,
        devices_per_host=devices,
        topology=topology,
        host_bounds=host_bounds,
    )


def mesh_of(**sizes: int) -> dict[str, int]:
    """A plan's mesh: what is not said has one device."""
    return dict.fromkeys(MESH_AXES, 1) | sizes


V4_32 = tpu_world("v4-32", (2, 2, 4), (2, 2, 1))
V5E_16 = tpu_world("v5e-16", (4, 4), (2, 2))
TWO_V5E_16 = tpu_world("v5e-16", (4, 4), (2, 2), slices=2)


def tiny_job(**sections: Any) -> Job:
    """A job on the tiny preset; sections replace or add."""
    base: dict[str, Any] = {
        "name": "tiny",
        "steps": 20,
        "model": {"preset": "tiny"},
        "data": {"source": "stdlib", "seq_len": 64, "global_batch": 16},
    }
    return Job.model_validate({**base, **sections})


def slice_world(name: str, slices: int) -> World:
    made = accelerators.parse(name)
    assert made.topology and made.host_bounds
    world = tpu_world(name, made.topology, made.host_bounds, slices)
    changes = {"simulated": False, "devices_per_host": made.devices_per_host}
    return world.model_copy(update=changes)
