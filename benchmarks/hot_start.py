"""Measures the time to the first step with programs that `launch plan --compile --keep` has kept.

    python benchmarks/hot_start.py [--hosts 1 2] [--devices 2] [--rounds 3] [KEY=VALUE ...]

For each number of hosts: seconds from the start of `launch` to the end of step 1, with --no-hot and
without, as medians of the rounds with the lowest and the highest; and the traces and compilations
of the process of host 0 until then. Every launch begins with empty caches, as on new hosts, and so
tokenizes its data. Programs are kept once, with a cache of their own.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORT = ["steps=2", "optimizer.warmup_steps=1", "checkpoint=null"]
WAYS = {"without": ["--no-hot"], "with": []}
"""Options of each way to launch."""


@dataclass(frozen=True)
class FirstStep:
    """How a launch came to its first step."""

    seconds: float
    compile_s: float
    """Seconds in which the program of the step was loaded, or traced and compiled."""
    traces: int
    compilations: int


def main() -> None:
    """Measures both ways alternately, for each number of hosts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 2])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("overrides", nargs="*", help="changes to jobs/quickstart.yaml")
    options = parser.parse_args()
    print(
        f"{'hosts':>5}  {'programs':8}  {'first step, s':>22}  {'of it compile, s':>22}  "
        f"{'traces':>6}  {'compilations':>12}"
    )
    for hosts in options.hosts:
        with tempfile.TemporaryDirectory() as name:
            found = _measured(Path(name), hosts, options)
        for way, steps in found.items():
            first = _spread([step.seconds for step in steps])
            compile_s = _spread([step.compile_s for step in steps])
            (counts,) = {(step.traces, step.compilations) for step in steps}
            print(
                f"{hosts:5}  {way:8}  {first}  {compile_s}  {counts[0]:6}  {counts[1]:12}",
                flush=True,
            )


def _spread(numbers: Sequence[float]) -> str:
    """Returns the median, the lowest and the highest number."""
    median = statistics.median(numbers)
    return f"{median:5.2f} ({min(numbers):.2f}-{max(numbers):.2f})".rjust(22)


def _measured(folder: Path, hosts: int, options: argparse.Namespace) -> dict[str, list[FirstStep]]:
    """Keeps the programs, and launches both ways in each round."""
    (folder / "cluster.yaml").write_text(
        f"{{accelerator: cpu, hosts: {hosts}, devices_per_host: {options.devices}, "
        "provider: {kind: local}}"
    )
    job = [str(ROOT / "jobs" / "quickstart.yaml"), *SHORT, *options.overrides]
    _run(folder, "keep", "plan", *job, "--compile", "--keep")
    found: dict[str, list[FirstStep]] = {way: [] for way in WAYS}
    for number in range(options.rounds):
        for way, words in WAYS.items():
            began = time.time()
            _run(folder, f"{way}-{number}", "run", *job, "--fresh", *words)
            found[way].append(_first_step(folder / "runs" / "quickstart", began))
    return found


def _run(folder: Path, cache: str, verb: str, *words: str) -> None:
    command = [sys.executable, "-m", "launcher", verb, *words, "-c", str(folder / "cluster.yaml")]
    subprocess.run(
        [*command, "--runs", str(folder / "runs")],
        env={**os.environ, "XDG_CACHE_HOME": str(folder / cache), "PYTHONPATH": str(ROOT)},
        check=True,
        stdout=subprocess.DEVNULL,
    )


def _first_step(run_dir: Path, began: float) -> FirstStep:
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    compiled = next(event for event in events if event["event"] == "compiled")
    first = min(event["time"] for event in events if event["event"] == "step")
    counts = compiled["traces"], compiled["compilations"]
    return FirstStep(first - began, compiled["seconds"], *counts)


if __name__ == "__main__":
    main()
