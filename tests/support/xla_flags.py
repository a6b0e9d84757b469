"""XLA flags of tests, most of whose programs are tiny and run a few times."""

from importlib.metadata import version

_JAXLIB = tuple(map(int, version("jaxlib").split(".")[:2]))

FAST_COMPILATION = "--xla_backend_optimization_level=0"
"""Flags that shorten compilation on CPU. Without optimization, XLA's fusion emitters take more than
half of it. jaxlib 0.10 can do without them; jaxlib 0.12 cannot, but has a preset."""
if _JAXLIB < (0, 11):
    FAST_COMPILATION += " --xla_cpu_use_fusion_emitters=false"
else:
    FAST_COMPILATION += " --xla_cpu_opt_preset=FAST_COMPILE"
