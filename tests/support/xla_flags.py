"""XLA flags of tests, most of whose programs are tiny and run a few times."""

from importlib.metadata import version

_JAXLIB = tuple(map(int, version("jaxlib").split(".")[:2]))

FAST_COMPILATION = "--xla_backend_optimization_level=0 --xla_cpu_experimental_ynn_fusion_type="
"""Flags that shorten compilation and the first run on CPU. Without optimization, XLA's fusion
emitters take more than half of the former: jaxlib 0.10 can do without them; jaxlib 0.12 cannot, but
has a preset. YNNPACK takes much of the latter: see `ON_CPU` in trainer/step/compiler_options.py."""
if _JAXLIB < (0, 11):
    FAST_COMPILATION += " --xla_cpu_use_fusion_emitters=false"
else:
    FAST_COMPILATION += " --xla_cpu_opt_preset=FAST_COMPILE"
