"""Measures the effect of GLIBC_TUNABLES=glibc.malloc.hugetlb=1 on a training step of a CPU host.

    python benchmarks/huge_pages.py [--d-model 256] [--devices 2] [--rounds 5] [--steps 10]

Runs the same job alternately in processes with and without it. Prints the median step time of each
and the median of the rounds' ratios.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
HUGE_PAGES = {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}
LEFT_OUT_STEPS = 2


def main() -> None:
    """Runs rounds of two processes; every second round starts with the other one."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("d-model", 256), ("devices", 2), ("rounds", 5), ("steps", 10)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    ways = {"without": {}, "with": HUGE_PAGES}
    times: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            order = list(ways) if number % 2 == 0 else list(reversed(ways))
            for name in order:
                run_dir = Path(folder) / f"{name}-{number}"
                times[name].append(_median_step_s(run_dir, options, ways[name]))
    for name, seconds in times.items():
        print(f"{name:8} huge pages {1000 * statistics.median(seconds):8.1f} ms a step")
    pairs = zip(times["with"], times["without"], strict=True)
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    print(f"ratio            {ratio:8.3f}, the median of the rounds' ratios")


def _median_step_s(
    run_dir: Path, options: argparse.Namespace, environment: dict[str, str]
) -> float:
    width = options.d_model
    command = [sys.executable, "-m", "trainer", str(ROOT / "jobs" / "quickstart.yaml")]
    command += [f"steps={options.steps + LEFT_OUT_STEPS}", "eval=null", "sample=null"]
    command += ["checkpoint=null"]
    command += [f"model.d_model={width}", f"model.d_ff={3 * width}"]
    devices = f"--xla_force_host_platform_device_count={options.devices}"
    subprocess.run(
        command,
        check=True,
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        env={
            **{name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"},
            **environment,
            "JAX_PLATFORMS": "cpu",
            "SLIPWAY_RUN_DIR": str(run_dir),
            "XLA_FLAGS": devices,
        },
    )
    lines = (run_dir / "metrics.jsonl").read_text().splitlines()
    steps = [json.loads(line)["step_time_s"] for line in lines]
    return statistics.median(steps[LEFT_OUT_STEPS:])


if __name__ == "__main__":
    main()
