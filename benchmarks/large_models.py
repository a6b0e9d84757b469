"""Compiles large models for absent pods: time, memory, and bytes between the devices.

    uv run --extra tpu python benchmarks/large_models.py [NAME ...]

Prints for each case the seconds of the plan with and without the compiler, the memory of this
machine that the compiler needed, and the memory of a device. For each kind of parallelism, prints
the bytes that the program sends in a step as a multiple of the necessary ones. `others` is the
share of all bytes that no kind of parallelism needs, with those that `data` sends beyond a sum of
gradients. Exits with 1 when `fsdp` or `tensor` is off by more than LIMIT, or `others` exceeds
OTHERS.

Two cases are compared with MaxText 0.2.5: the same model, mesh, batch and rematerialization,
compiled for the same pod by its `train_compile`, on the same two cores with libtpu 0.0.52. The
figure of both is the peak memory (`memory_analysis().peak_memory_in_bytes`).
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

GB = 1e9
BOUND, LIMIT = ("fsdp", "tensor"), 0.1
OTHERS = 0.05
DOES_NOT_FIT = 1


@dataclass(frozen=True)
class Case:
    """A model on a cluster, with overrides of the job."""

    model: str
    cluster: str
    overrides: tuple[str, ...]
    maxtext_gb: float | None = None
    """Per device, at the moment when it needs the most."""


CASES = {
    "8b-v5p-64": Case("llama3-8b", "tpu-v5p-64", ("data.global_batch=64",), 10.94),
    "8b-v4-32": Case("llama3-8b", "tpu-v4-32", ("data.global_batch=16",), 11.23),
    "8b-v6e-256": Case("llama3-8b", "tpu-v6e-256", ("data.global_batch=256",)),
    "8b-v5p-64-tensor": Case("llama3-8b", "tpu-v5p-64", ("data.global_batch=64", "mesh.tensor=4")),
    "8b-2x-v5e-256": Case("llama3-8b", "two.yaml", ("data.global_batch=512",)),
    "70b-v5p-512": Case("llama3-70b", "v5p-512", ("data.global_batch=256",)),
}
JOB = """\
name: large
steps: 100000
model: {{preset: {model}, remat: full}}
data: {{source: text, path: "corpus/*", seq_len: 4096}}
eval: null
sample: null
checkpoint: null
"""
TWO_SLICES = "{accelerator: v5e-256, slices: 2, provider: {kind: gcp}}"


def main() -> int:
    """Compiles each case in separate processes, and prints a line for each."""
    kept = True
    for name in sys.argv[1:] or CASES:
        with tempfile.TemporaryDirectory() as folder:
            kept &= show(name, CASES[name], Path(folder))
    return 0 if kept else 1


def show(name: str, case: Case, folder: Path) -> bool:
    """Prints the figures; returns whether the limits hold."""
    (folder / "job.yaml").write_text(JOB.format(model=case.model))
    (folder / "two.yaml").write_text(TWO_SLICES)
    command = [
        sys.executable,
        "-m",
        "launcher",
        "plan",
        "job.yaml",
        "-c",
        case.cluster,
        *case.overrides,
    ]
    plan_s, _, _ = run(command, folder)
    compiled_s, peak_bytes, output = run([*command, "--compile", "-o", "json"], folder)
    found = json.loads(output)
    memory = sum(found["memory"][part] for part in ("parameters", "optimizer", "temporaries"))
    print(
        f"{name}: plan {plan_s:.2f} s; compiled plan {compiled_s:.0f} s with "
        f"{peak_bytes / 2**30:.1f} GiB; {'fits' if found['fits'] else 'does not fit'}"
    )
    print(f"  per device {memory / GB:.2f} GB: {parts(found['memory'])}")
    if case.maxtext_gb is not None:
        print(
            f"  MaxText 0.2.5: {case.maxtext_gb:.2f} GB; ratio {memory / GB / case.maxtext_gb:.2f}"
        )
    return shares(found["strategies"]) and found["fits"]


def run(command: list[str], folder: Path) -> tuple[float, int, str]:
    """Returns the wall time in seconds, the peak memory of a process in bytes, and the output."""
    began = time.perf_counter()
    with (folder / "output").open("w+") as output:
        environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
        child = subprocess.Popen(command, cwd=folder, env=environment, stdout=output)
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode not in (0, DOES_NOT_FIT):
            sys.exit(child.returncode)  # it has printed the reason
        output.seek(0)
        return time.perf_counter() - began, usage.ru_maxrss * 1024, output.read()


def parts(memory: dict[str, int]) -> str:
    return ", ".join(f"{name} {size / GB:.2f}" for name, size in memory.items())


def shares(strategies: dict[str, dict[str, int]]) -> bool:
    """Prints each kind of parallelism; returns whether the limits hold."""
    total, data = sum(share["sent"] for share in strategies.values()), strategies["data"]
    others = (strategies["other"]["sent"] + max(0, data["sent"] - data["must"])) / total
    ratios = {
        name: strategies[name]["sent"] / strategies[name]["must"]
        for name in (*BOUND, "data")
        if strategies[name]["must"]
    }
    for name, ratio in ratios.items():
        sent = strategies[name]["sent"] / GB
        print(f"  {name}: {sent:.2f} GB a step, {ratio:.3f} times what it must")
    print(f"  others: {others:.2%}")
    return others < OTHERS and all(abs(ratios.get(name, 1) - 1) <= LIMIT for name in BOUND)


if __name__ == "__main__":
    sys.exit(main())
