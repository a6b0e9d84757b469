"""Devices of TPU slices that need not exist, as libtpu describes them to its compiler."""

import os
from collections.abc import Sequence

from trainer.contract.planning import accelerators
from trainer.contract.planning.accelerators import lacks_compiler
from trainer.contract.planning.plan import World
from trainer.distributed.mesh import Device

LIBTPU_NAMES = {"v7x": "tpu7x"}
ONE_DEVICE_FOR_TWO_CORES = ("v4", "v5p")
"""Generations that libtpu can also describe with one device per core."""


class NoCompilerError(Exception):
    """This machine has no compiler for the accelerator; the message states the remedy."""


def devices(world: World) -> Sequence[Device]:
    """Returns the devices of all slices, in libtpu's order. Raises NoCompilerError."""
    if lack := lacks_compiler(world):
        raise NoCompilerError(lack)
    assert world.topology and world.host_bounds
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # no machine has metadata to query
    # No chip is used: other processes may compile at the same time, or train on this machine.
    os.environ["ALLOW_MULTIPLE_LIBTPU_LOAD"] = "1"
    from jax.experimental import topologies

    generation = accelerators.parse(world.accelerator).generation
    cores = {"chip_config_name": "megacore"} if generation in ONE_DEVICE_FOR_TWO_CORES else {}
    name = LIBTPU_NAMES.get(generation, generation)
    return topologies.get_topology_desc(
        platform="tpu",
        topology_name=f"{name}:{'x'.join(map(str, world.topology))}",
        chips_per_host_bounds=(*world.host_bounds, 1)[:3],
        num_slices=world.slices,
        **cores,
    ).devices
