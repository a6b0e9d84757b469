"""The plan of a check of hosts: the same job on the devices of one host, one example per device.

All that is compared is computed within a host. Sums over several hosts depend on the place of each
host in them, so two hosts that do the same work there may round differently.
"""

import math

from trainer.contract.planning import sharding_rules
from trainer.contract.planning.plan import ArrayPlan, BatchSplit, Plan

INSIDE = ("tensor", "context", "expert")
"""Axes that keep their size as far as a host has devices; `fsdp` has the rest."""
ELEMENT_BYTES = {"float32": 4, "bfloat16": 2}


def on_one_host(plan: Plan) -> Plan:
    """Returns the plan of a check: each host follows it on its own devices."""
    free = plan.world.devices_per_host
    mesh: dict[str, int] = dict.fromkeys(sharding_rules.MESH_AXES, 1)
    for axis in INSIDE:
        mesh[axis] = math.gcd(plan.mesh[axis], free)
        free //= mesh[axis]
    mesh["fsdp"] = free
    one = {"slices": 1, "hosts_per_slice": 1, "topology": None, "host_bounds": None}
    rows = sharding_rules.row_shards(mesh)
    length = plan.batch.positions_per_device * plan.mesh["context"]
    batch = BatchSplit(
        global_batch=rows,
        grad_accum_steps=1,
        rows_per_device=1,
        positions_per_device=length // mesh["context"],
        chunks=plan.batch.chunks,
        rows_per_process=rows,
        blocks=1,
        block_of_process=(0,),
    )
    changes = {
        "world": plan.world.model_copy(update=one),
        "mesh": mesh,
        "device_order": tuple(range(plan.world.devices_per_host)),
        "batch": batch,
        "parameters": tuple(_placed(array, mesh) for array in plan.parameters),
    }
    return plan.model_copy(update=changes)


def _placed(array: ArrayPlan, mesh: dict[str, int]) -> ArrayPlan:
    spec = sharding_rules.partition(array.shape, array.axes, mesh)
    parts = math.prod(sharding_rules.parts(entry, mesh) for entry in spec)
    size = math.prod(array.shape) // parts * ELEMENT_BYTES[array.dtype]
    return array.model_copy(update={"spec": spec, "bytes_per_device": size})
