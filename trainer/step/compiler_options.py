"""Compiler options of the training step: libtpu flags, and those of XLA:CPU.

Those of libtpu make the compiler gather weights during the products before them, and scatter
gradients during the products after them. They depend on the TPU generation.
`tests/integration/trainer/test_overlap.py` checks them with the compiler of each.
trainer/step/gpu_options.py has the options of XLA:GPU.
"""

import os
import re
import warnings
from collections.abc import Mapping

import jax
from jax.sharding import Mesh

from trainer.contract.config.job import Deadlines
from trainer.contract.protocol.environment import XLA_FLAGS
from trainer.step import gpu_options

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
WHOLE_SCATTERS = {"xla_tpu_enable_windowed_einsum_for_reduce_scatter": "false"}
"""Otherwise few chips with SparseCores scatter gradients by permutes between parts of products: a
step of llama3-8b on v5p-64 takes 12 % longer by the compiled schedule, and 6 % with two stages."""
WITH_SPARSE_CORES = WHOLE_GATHERS | ON_SPARSE_CORES | WHOLE_SCATTERS
KINDS = {
    "TPU v5 lite": FUSED_GATHERS,
    "TPU v5": WITH_SPARSE_CORES,
    "TPU v6 lite": WITH_SPARSE_CORES,
}
"""Options by device kind."""
ON_CPU = {"xla_cpu_experimental_ynn_fusion_type": ""}
"""No YNNPACK: it builds and simplifies a graph for each product when that first runs.
With it, the first step of the quickstart takes 1.2 to 1.6 s instead of 0.55 to 0.65 s, and the
others take as long (`step_time_s` in metrics.jsonl, two devices on two cores)."""
DETECTOR = {
    "xla_tpu_enable_sdc_checker": "true",
    "xla_tpu_sdc_check_repeat_count": "1",
    "xla_tpu_sdc_check_halt_on_detection": "true",
    "xla_tpu_sdc_checker_alternate_megacore_cores": "true",
}
"""libtpu's detector of silent data corruption, which repeats operations and compares the results. A
difference ends the program. The names are in libtpu 0.0.42.1 and later. Meanings and values:
`infer_xsc_compiler_options` of https://github.com/apple/axlearn."""
ONE_CORE = ("TPU v5 lite", "TPU v6 lite")
ON_ONE_CORE = {"xla_tpu_sdc_replicate_llo": "true"}
"""On chips of one core, instructions are repeated, since no second core can."""
SAME_ON_ALL_GPUS = {
    "xla_gpu_exclude_nondeterministic_ops": "True",
    "xla_gpu_autotune_level": "0",
}
"""Otherwise sums of scatters depend on time, and each host may choose other kernels:
https://openxla.org/xla/determinism."""
UNKNOWN = re.compile(r"No such compile option: '(\w+)'")


def of_step(mesh: Mesh) -> dict[str, str]:
    """Returns the compiler options for the mesh's devices."""
    device = mesh.devices.flat[0]
    if device.platform == "gpu":
        return gpu_options.of_step(mesh.size, os.environ.get(XLA_FLAGS, ""))
    if device.platform == "cpu":
        return ON_CPU
    return GATHER | KINDS.get(device.device_kind, WHOLE_GATHERS)


def hang_deadline(mesh: Mesh, deadlines: Deadlines) -> dict[str, str]:
    """Returns the options that end a process whose step hangs; none but on GPUs.

    The deadline is longer than a host may let the others wait. A launcher notices a hang earlier,
    and a process that has one does without: XLA enforces the deadline by waiting, on the host, for
    each step (jaxlib 0.11.2 on an H200: a program's dispatch took 136.5 of its 136.8 ms with it,
    3.0 ms without).
    """
    if mesh.devices.flat[0].platform != "gpu":
        return {}
    waits = (deadlines.compile_s, deadlines.restore_s, deadlines.evaluate_s, deadlines.save_s)
    return gpu_options.hang_deadline(max(waits), os.environ.get(XLA_FLAGS, ""))


def of_host_check(mesh: Mesh, *, detector: bool) -> dict[str, str]:
    """Returns the compiler options of a program whose result must be the same on all hosts.

    `detector`: with libtpu's own detector of wrong results, on TPUs.
    """
    device = mesh.devices.flat[0]
    if device.platform == "gpu":
        return SAME_ON_ALL_GPUS
    if device.platform != "tpu" or not detector:
        return {}
    return DETECTOR | (ON_ONE_CORE if device.device_kind in ONE_CORE else {})


def compiled(lowered: jax.stages.Lowered, wanted: Mapping[str, str]) -> jax.stages.Compiled:
    """Compiles a program with compiler options.

    Takes the earlier name of an option if this version of the compiler has only that. Warns about
    options that it does not have, and compiles without them.
    Raises JaxRuntimeError for any other error.
    """
    options: dict[str, str | bool] = {**wanted}
    while True:
        try:
            return lowered.compile(compiler_options=options)
        except jax.errors.JaxRuntimeError as error:
            unknown = UNKNOWN.search(str(error))
            if unknown is None or options.pop(unknown[1], None) is None:
                raise
            if earlier := gpu_options.EARLIER.get(unknown[1]):
                options.update([earlier])
                continue
            message = f"compiling without {unknown[1]}: the compiler does not have this option"
            warnings.warn(message, stacklevel=2)
