"""Environment variables of CUDA programs, which libraries read when they start: a small table.

What is set already stays. Machines without JAX's plugin for CUDA get none.

Sources:
    Share of the memory: 0.9 or 0.8 in
        https://github.com/NVIDIA/JAX-Toolbox/blob/main/rosetta/docs/GPU_performance.md; JAX takes
        0.75 by default, https://docs.jax.dev/en/latest/gpu_memory_allocation.html
    NCCL inside one host: https://docs.jax.dev/en/latest/gpu_performance_tips.html#nccl-flags, which
        finds no use for them between hosts
"""

from collections.abc import MutableMapping
from importlib.util import find_spec

from trainer.contract.protocol.environment import JAX_PLATFORMS, NUM_PROCESSES

PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin")
MEMORY_SHARE, OLD_MEMORY_SHARE = "XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION"
"""jaxlib refuses both at once."""
SHARE = "0.9"
"""Share of a GPU's memory that JAX allocates at its start; the rest is for NCCL and cuBLAS."""
IN_ONE_HOST = {
    "NCCL_LL128_BUFFSIZE": "-2",
    "NCCL_LL_BUFFSIZE": "-2",
    "NCCL_PROTO": "SIMPLE,LL,LL128",
}
"""NCCL's protocols and buffers, for processes that are alone."""


def set_defaults(variables: MutableMapping[str, str]) -> None:
    """Sets the variables of a process that may use GPUs; call it before JAX looks for devices."""
    platforms = variables.get(JAX_PLATFORMS, "cuda").split(",")
    if not {"cuda", "gpu"} & set(platforms) or not any(map(find_spec, PLUGINS)):
        return
    if OLD_MEMORY_SHARE not in variables:
        variables.setdefault(MEMORY_SHARE, SHARE)
    if int(variables.get(NUM_PROCESSES, 1)) == 1:
        for name, value in IN_ONE_HOST.items():
            variables.setdefault(name, value)
