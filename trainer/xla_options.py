"""What the compiler is told for the training step."""

from jax.sharding import Mesh

OVERLAP_ON_TPU = {
    # Weights are gathered while the products before them are computed, not in between.
    "xla_enable_async_all_gather": "true",
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
    "xla_tpu_overlap_compute_collective_tc": "true",
}
"""Flags of libtpu, by which all-gathers overlap with products; without them they do not."""


def of_step(mesh: Mesh) -> dict[str, str] | None:
    """For the platform of the mesh's devices; None: nothing."""
    return OVERLAP_ON_TPU if mesh.devices.flat[0].platform == "tpu" else None
