"""Options of XLA:GPU for the training step, each with its source.

They are passed with the step, not in XLA_FLAGS, where a name that a version of the compiler does
not have would end the process. XLA reads "True" and "False" there, not "true". An option that the
user's XLA_FLAGS name is left to them. Those of one GPU have been measured, those of collectives
have not: docs/how-to/gpus.md says what was checked.

Sources:
    NVIDIA: https://github.com/NVIDIA/JAX-Toolbox/blob/main/rosetta/docs/GPU_performance.md, and
        the flags of `test-maxtext.sh` in the same repository
    JAX: https://docs.jax.dev/en/latest/gpu_performance_tips.html
    MaxText: the GPU scripts of https://github.com/AI-Hypercomputer/maxtext
    XLA: xla/debug_options_flags.cc and xla/xla.proto of https://github.com/openxla/xla
"""

import re
from collections.abc import Mapping

PRODUCTS = {
    "xla_gpu_enable_triton_gemm": "False",
    "xla_gpu_enable_dynamic_slice_fusion": "False",
}
"""cuBLAS computes the products. NVIDIA and MaxText turn Triton's kernels off; each product would be
compiled and timed with dozens of them first.

The second option is on by default since 2026 (https://github.com/openxla/xla/pull/43831). A product
that the loop over layers keeps for the backward pass is then computed twice: once for the layer,
and again into the stack of all layers (https://github.com/openxla/xla/pull/45799)."""
OVERLAP = {
    "xla_gpu_enable_latency_hiding_scheduler": "True",
    "xla_gpu_enable_highest_priority_async_stream": "True",
}
"""Collectives run beside products (NVIDIA, JAX, MaxText), on a stream of the highest priority."""
COMBINED = {
    "xla_gpu_all_gather_combine_threshold_bytes": str(2**30),
    "xla_gpu_reduce_scatter_combine_threshold_bytes": str(2**30),
    "xla_gpu_all_reduce_combine_threshold_bytes": str(2**30),
    "xla_gpu_enable_all_gather_combine_by_dim": "False",
    "xla_gpu_enable_reduce_scatter_combine_by_dim": "False",
}
"""One collective for all weights of a layer: JAX asks for a threshold of a whole layer or more, and
NVIDIA has 1 GiB for models of many sizes. Weights are split along different dims, so they are
combined whatever their dim (NVIDIA, MaxText)."""
PIPELINED = {
    "xla_gpu_pipeline_all_gather": "COLLECTIVE_PIPELINING_MODE_ON",
    "xla_gpu_pipeline_reduce_scatter": "COLLECTIVE_PIPELINING_MODE_ON",
    "xla_gpu_pipeline_all_reduce": "COLLECTIVE_PIPELINING_MODE_ON",
    "xla_gpu_enable_while_loop_double_buffering": "True",
}
"""In the loop over layers, weights of the next layer are gathered during this one, and gradients of
the last one are scattered (NVIDIA, MaxText). Two layers' weights then need two buffers."""
EARLIER = {
    "xla_gpu_pipeline_all_gather": ("xla_gpu_enable_pipelined_all_gather", "True"),
    "xla_gpu_pipeline_reduce_scatter": ("xla_gpu_enable_pipelined_reduce_scatter", "True"),
    "xla_gpu_pipeline_all_reduce": ("xla_gpu_enable_pipelined_all_reduce", "True"),
}
"""Options under the names of earlier compilers, such as that of jaxlib 0.10, and their values."""
OF_COLLECTIVES = OVERLAP | COMBINED | PIPELINED
HANG_DEADLINE = "xla_gpu_execution_terminate_timeout"
"""Ends the process when one execution takes longer, as Go formats durations (XLA). It counts from
the dispatch of the program to its end on the device."""
FLAG = re.compile(r"--(xla_\w+)")


def of_step(devices: int, flags: str) -> dict[str, str]:
    """Returns the options of a step on so many GPUs; `flags` are the user's XLA_FLAGS."""
    return _unset(PRODUCTS | (OF_COLLECTIVES if devices > 1 else {}), flags)


def hang_deadline(seconds: float, flags: str) -> dict[str, str]:
    """Returns the option that ends a process whose step has not finished after so many seconds."""
    return _unset({HANG_DEADLINE: f"{seconds:.0f}s"}, flags)


def _unset(options: Mapping[str, str], flags: str) -> dict[str, str]:
    named = set(FLAG.findall(flags))
    return {name: value for name, value in options.items() if name not in named}
