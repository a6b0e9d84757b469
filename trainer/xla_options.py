"""What the compiler is told for the training step."""

from jax.sharding import Mesh

OVERLAP_ON_TPU = {
    # Weights are gathered while the products before them are computed, not in between.
    "xla_enable_async_all_gather": "true",
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
    "xla_tpu_overlap_compute_collective_tc": "true",
    # Else weights are gathered by a sum, twice the bytes: all of them from 4x4x4 chips on.
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
}
"""Flags of libtpu, by which all-gathers overlap with products; without them they do not."""


SCATTER_ON_SPARSE_CORE = {
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": "true",
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": "true",
    "xla_tpu_use_tc_device_shape_on_sc": "true",
    # Else the parts of some large gradients do not suit it, as of llama3-70b's feed-forward weights
    # in 256 parts: those are scattered by all-reduces, too.
    "xla_jf_cross_replica_sharding_also_try_reducing_min_span_by_factor": "8",
}
"""Gradients are scattered there, beside the products. Without it the compiler scatters those of a
v6e, and of a v5p from 4x4x4 chips on, by all-reduces, twice the bytes."""
WITH_SPARSE_CORES = ("TPU v5", "TPU v6 lite")
"""Kinds of device that are told so."""


def of_step(mesh: Mesh) -> dict[str, str] | None:
    """For the mesh's devices; None: nothing."""
    device = mesh.devices.flat[0]
    if device.platform != "tpu":
        return None
    return OVERLAP_ON_TPU | (
        SCATTER_ON_SPARSE_CORE if device.device_kind in WITH_SPARSE_CORES else {}
    )
