"""The devices of a TPU pod that is not there, as libtpu describes them to its compiler."""

import os
from collections.abc import Sequence

from trainer.contract.planning import accelerators
from trainer.contract.planning.accelerators import lacks_compiler
from trainer.contract.planning.plan import World
from trainer.distributed.mesh import Device

LIBTPU_NAMES = {"v7x": "tpu7x"}
ONE_DEVICE_FOR_TWO_CORES = ("v4", "v5p")
"""Generations that libtpu knows with one device for each core too."""


class NoCompilerError(Exception):
    """There is no compiler for this accelerator here; says how to get one."""


def devices(world: World) -> Sequence[Device]:
    """Of all slices, in libtpu's order. Raises NoCompilerError."""
    if lack := lacks_compiler(world):
        raise NoCompilerError(lack)
    assert world.topology and world.host_bounds
    os.environ["TPU_SKIP_MDS_QUERY"] = "1"  # there is no machine whose metadata could be asked for
    # No chip is touched: others may compile at the same time, or train on this machine's.
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
