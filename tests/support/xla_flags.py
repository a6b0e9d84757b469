"""XLA flags of tests, most of whose programs are tiny and run a few times."""

from importlib.metadata import version

_JAXLIB = tuple(map(int, version("jaxlib").split(".")[:2]))

FAST_COMPILATION = "--xla_backend_optimization_level=0"
"""Flags for a compiler on CPU that takes little time. On jaxlib 0.10, XLA's emitters of fusions
take more than half of that time without optimization; jaxlib 0.12 cannot do without them."""
if _JAXLIB < (0, 11):
    FAST_COMPILATION += " --xla_cpu_use_fusion_emitters=false"
