"""Compiler options of the training step: libtpu flags.

They make the compiler gather weights during the products before them, and scatter gradients during
the products after them. The options depend on the TPU generation.
`tests/integration/trainer/test_overlap.py` checks them with the compiler of each.
"""

import re
import warnings
from collections.abc import Mapping
from types import MappingProxyType

import jax
from jax.sharding import Mesh

GATHER = {
    "xla_enable_async_all_gather": "true",
    # Otherwise all-reduces gather weights, twice the bytes: all weights from 4x4x4 chips on.
    "xla_tpu_prefer_async_allgather_to_allreduce": "true",
}
FUSED_GATHERS = {
    "xla_tpu_enable_async_collective_fusion": "true",
    "xla_tpu_enable_async_collective_fusion_fuse_all_gather": "true",
    "xla_tpu_enable_async_collective_fusion_multiple_steps": "true",
    "xla_tpu_overlap_compute_collective_tc": "true",
}
"""A v5e has only its core for gathers: pieces of them are fused into the products."""
WHOLE_GATHERS = {"xla_tpu_enable_async_collective_fusion": "false"}
"""On any other chip, fused gathers give wrong numbers or hang, according to libtpu. From 0.0.50 on
it refuses to compile them."""
ON_SPARSE_CORES = {
    "xla_tpu_enable_sparse_core_collective_offload_all_gather": "true",
    "xla_tpu_enable_sparse_core_collective_offload_reduce_scatter": "true",
    "xla_tpu_enable_sparse_core_collective_offload_nd_reduce_scatter": "true",
    "xla_tpu_use_tc_device_shape_on_sc": "true",
    # Otherwise the shards of some large gradients do not qualify: for example, all-reduces also
    # scatter those of llama3-70b's feed-forward weights in 256 parts.
    "xla_jf_cross_replica_sharding_also_try_reducing_min_span_by_factor": "8",
}
"""Without these options, gathers wait for the products. The compiler then scatters gradients by
all-reduces, twice the bytes, on a v6e, and on a v5p from 4x4x4 chips on."""
KINDS = {
    "TPU v5 lite": FUSED_GATHERS,
    "TPU v5": WHOLE_GATHERS | ON_SPARSE_CORES,
    "TPU v6 lite": WHOLE_GATHERS | ON_SPARSE_CORES,
}
"""Options by device kind."""
UNKNOWN = re.compile(r"No such compile option: '(\w+)'")


def of_step(mesh: Mesh) -> dict[str, str]:
    """Returns the compiler options for the mesh's devices."""
    device = mesh.devices.flat[0]
    if device.platform != "tpu":
        return {}
    return GATHER | KINDS.get(device.device_kind, WHOLE_GATHERS)


def compiled(
    lowered: jax.stages.Lowered, mesh: Mesh, further: Mapping[str, str] = MappingProxyType({})
) -> jax.stages.Compiled:
    """Compiles a step for the mesh's devices, with `further` options.

    Warns about options that this version of the compiler does not have, and compiles without them:
    they only affect speed. Raises JaxRuntimeError for any other error.
    """
    options: dict[str, str | bool] = {**of_step(mesh), **further}
    while True:
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            unknown = UNKNOWN.search(str(error))
            if unknown is None or options.pop(unknown[1], None) is None:
                raise
            message = f"compiling without {unknown[1]}: the compiler does not have this option"
            warnings.warn(message, stacklevel=2)
