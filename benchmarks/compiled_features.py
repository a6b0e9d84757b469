"""Compiles pipelines, 8-bit products, offload and experts for absent pods.

    uv run --extra tpu python -m benchmarks.compiled_features [FEATURE ...] [--clusters NAME ...]

Prints a row for each feature on each cluster, as soon as its step is compiled, which takes one to
five minutes on one core: the memory that a device needs and what it keeps in that of its host, the
forecast of the step, the tokens per second of a device, its matrix products in 8 bits, and the
bytes that a device sends in a step for each kind of parallelism, in parentheses as a multiple of
those that it must send. `dense` and `experts gathered` are what the others are compared with. All
jobs have four sequences of 4,096 tokens per device in a step, and recompute whole layers. Exits
with 1 when a step is not compiled or does not fit.
"""

import argparse
import sys
from collections.abc import Mapping
from typing import Any

from benchmarks.forecast_parts import Case, compiled, line

ROWS_PER_DEVICE, SEQ_LEN = 4, 4096
GB = 1e9
CLUSTERS = {
    "v5p-64": ("v5p-64", 1),
    "v6e-256": ("v6e-256", 1),
    "2x-v5p-64": ("v5p-64", 2),
    "v7x-128": ("v7x-128", 1),
}
"""Name -> the accelerator of a slice, the number of slices."""
DENSE, EXPERTS = "llama3-8b", "mixtral-8x7b"
ONE_ROW_AT_A_TIME = "data.grad_accum_steps=4"
FEATURES = {
    "dense": (DENSE, (ONE_ROW_AT_A_TIME,)),
    # Two stages: each device has one row of every micro-batch.
    "pipeline": (
        DENSE,
        ("data.grad_accum_steps=8", "mesh.pipeline=2", "mesh.pipeline_schedule=1f1b"),
    ),
    "8 bits": (DENSE, (ONE_ROW_AT_A_TIME, "model.precision=int8")),
    "moments offloaded": (DENSE, (ONE_ROW_AT_A_TIME, "optimizer.offload_moments=true")),
    "activations offloaded": (DENSE, (ONE_ROW_AT_A_TIME, "model.offload=[layer_input]")),
    "experts gathered": (EXPERTS, (ONE_ROW_AT_A_TIME,)),
    "experts exchanged": (EXPERTS, (ONE_ROW_AT_A_TIME, "mesh.expert=8")),
}
"""Name -> the preset of the model, what is set in the job."""
IN_8_BITS = ("s8", "f8")
"""Starts of the names of XLA's dtypes."""
HEAD = [
    "feature", "cluster", "HBM", "host", "step", "tokens/s per device", "products in 8 bits",
    "sent for each kind of parallelism",
]  # fmt: skip


def main() -> int:
    """Compiles all that was asked for, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("features", nargs="*", metavar="FEATURE", help=", ".join(FEATURES))
    parser.add_argument("--clusters", nargs="*", choices=CLUSTERS, default=[*CLUSTERS])
    options = parser.parse_args()
    if unknown := set(options.features) - {*FEATURES}:
        parser.error(f"no feature is named {', '.join(sorted(unknown))}")
    print(line(HEAD), line(["---"] * len(HEAD)), sep="\n", flush=True)
    missing = 0
    for cluster in options.clusters:
        for feature in options.features or FEATURES:
            case = case_of(feature, cluster)
            found = compiled(case)
            missing += found is None
            row = cells(found) if found else ["not compiled"]
            print(line([feature, case.cluster_name, *row]), flush=True)
    return 1 if missing else 0


def case_of(feature: str, cluster: str) -> Case:
    """Returns the job of a feature on a cluster; v7x multiplies fp8, the others int8."""
    accelerator, slices = CLUSTERS[cluster]
    preset, overrides = FEATURES[feature]
    if accelerator.startswith("v7x"):
        overrides = tuple(one.replace("int8", "fp8") for one in overrides)
    return Case(preset, accelerator, ROWS_PER_DEVICE, SEQ_LEN, slices, overrides)


def cells(found: Mapping[str, Any]) -> list[str]:
    """Returns the figures of a compiled plan."""
    forecast = found["forecast"]
    products = found["products"] or {}
    return [
        f"{found['hbm_needed_bytes'] / GB:.1f} GB",
        f"{(found['host_bytes'] or 0) / GB:.1f} GB",
        f"{forecast['step_time_s']:.2f} s",
        f"{forecast['tokens_per_s_per_device']:,.0f}",
        str(sum(count for dtype, count in products.items() if dtype.startswith(IN_8_BITS))),
        ", ".join(
            sent(name, share) for name, share in found["strategies"].items() if share["sent"]
        ),
    ]


def sent(name: str, share: Mapping[str, int]) -> str:
    """Returns the bytes of one kind of parallelism."""
    multiple = f" ({share['sent'] / share['must']:.2f})" if share["must"] else ""
    return f"{name} {share['sent'] / GB:.2f} GB{multiple}"


if __name__ == "__main__":
    sys.exit(main())
