"""What the compiler is told for the training step: flags of libtpu.

Weights are to be gathered while the products before them are computed, and gradients scattered
beside those after them. How a chip does that is its generation's: `tests/trainer/test_overlap.py`
asks the compiler of each.
"""

from jax.sharding import Mesh

GATHER = {
    "xla_enable_async_all_gather": "true",
    # Else weights are gathered by a sum, twice the bytes: all of them from 4x4x4 chips on.
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
}
IN_PIECES = {
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
    "xla_tpu_overlap_compute_collective_tc": "true",
}
"""A v5e has nothing but its core to do it: pieces of the gathers are fused into the products."""
AS_A_WHOLE = {"xla_tpu_enable_async_collective_fusion": "false"}
"""On any other chip that gives wrong numbers or hangs, by what libtpu says from 0.0.50 on, where it
refuses to compile it."""
ON_SPARSE_CORES = {
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": "true",
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": "true",
    "xla_tpu_use_tc_device_shape_on_sc": "true",
    # Else the parts of some large gradients do not suit it, as of llama3-70b's feed-forward weights
    # in 256 parts: those are scattered by all-reduces, too.
    "xla_jf_cross_replica_sharding_also_try_reducing_min_span_by_factor": "8",
}
"""Without it gathers wait for the products, and the compiler scatters the gradients of a v6e, and
of a v5p from 4x4x4 chips on, by all-reduces, twice the bytes."""
KINDS = {
    "TPU v5 lite": IN_PIECES,
    "TPU v5": AS_A_WHOLE | ON_SPARSE_CORES,
    "TPU v6 lite": AS_A_WHOLE | ON_SPARSE_CORES,
}
"""By the kind of device."""


def of_step(mesh: Mesh) -> dict[str, str] | None:
    """For the mesh's devices; None: nothing."""
    device = mesh.devices.flat[0]
    if device.platform != "tpu":
        return None
    return GATHER | KINDS.get(device.device_kind, AS_A_WHOLE)
