"""What the compiler is told for the training step: flags of libtpu.

Weights are to be gathered while the products before them are computed, and gradients scattered
beside those after them. How a chip does that is its generation's: `tests/trainer/test_overlap.py`
asks the compiler of each.
"""

import re
import warnings

import jax
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
UNKNOWN = re.compile(r"No such compile option: '(\w+)'")


def of_step(mesh: Mesh) -> dict[str, str]:
    """For the mesh's devices."""
    device = mesh.devices.flat[0]
    if device.platform != "tpu":
        return {}
    return GATHER | KINDS.get(device.device_kind, AS_A_WHOLE)


def compiled(lowered: jax.stages.Lowered, mesh: Mesh) -> jax.stages.Compiled:
    """For the mesh's devices. What their compiler does not know, as one of another version may not,
    is left out with a warning: it is about speed. Raises JaxRuntimeError for anything else.
    """
    options: dict[str, str | bool] = {**of_step(mesh)}
    while True:
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            unknown = UNKNOWN.search(str(error))
            if unknown is None or options.pop(unknown[1], None) is None:
                raise
            said = f"compiled without {unknown[1]}: this compiler has no such option"
            warnings.warn(said, stacklevel=2)
