"""Do undisturbed runs have spikes? Trains 20 small jobs and lists every false alarm.

`uv run python benchmarks/spikes.py FOLDER` trains jobs with other optimizers, rates, batches and
seeds, one after another, on this machine. It prints the alarms of each run, and how near its
values came to the limits: 1 is a limit. Runs that are in the folder already are read, not trained.
"""

import itertools
import json
import math
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.step.spikes import RecentSteps

STEPS = 300
OPTIMIZERS = {"adamw": 1e-3, "muon": 2e-2, "lion": 2e-4, "adafactor": 1e-2}
"""Name -> a usual peak learning rate."""
BATCHES = ((4, 64), (16, 128), (32, 32), (8, 256), (64, 64))
"""Sequences in a batch, and tokens in a sequence."""


def main() -> None:
    """Trains, and prints one line for each run."""
    folder, alarms = Path(sys.argv[1]), 0
    for number, job in enumerate(jobs()):
        metrics = folder / "runs" / job["name"] / "metrics.jsonl"
        if not metrics.exists():
            train(folder, job)
        found, nearest = judged(metrics)
        alarms += len(found)
        print(f"{number + 1:2} {job['name']:28} nearest {nearest:.2f}  alarms {found}", flush=True)
    print(f"{alarms} false alarms")


def jobs() -> Iterator[dict[str, Any]]:
    """Yields the 20 jobs."""
    for (name, rate), (rows, length) in itertools.product(OPTIMIZERS.items(), BATCHES):
        yield {
            "name": f"{name}-{rows}x{length}",
            "steps": STEPS,
            "seed": rows,
            "model": {"layers": 2, "d_model": 64, "heads": 4, "kv_heads": 2, "d_ff": 128},
            "data": {"source": "stdlib", "seq_len": length, "global_batch": rows},
            "optimizer": {
                "name": name, "learning_rate": rate, "schedule": "cosine", "warmup_steps": 20,
            },
            "eval": None, "sample": None, "checkpoint": None,
        }  # fmt: skip


def train(folder: Path, job: dict[str, Any]) -> None:
    """Trains a job in `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"{job['name']}.yaml"
    file.write_text(json.dumps(job))
    command = [sys.executable, "-m", "trainer", str(file.absolute())]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


def judged(metrics: Path) -> tuple[list[int], float]:
    """Returns the steps of a run that are spikes, and the nearest approach to a limit."""
    recent, alarms, nearest = RecentSteps(), list[int](), 0.0
    for text in metrics.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        step, loss, grad_norm = line["step"], line["loss"], line["grad_norm"]
        limits = recent.limits(step)
        if not limits.are_kept(loss, grad_norm):
            alarms.append(step)
        for value, limit in ((loss, limits.loss), (grad_norm, limits.grad_norm)):
            nearest = max(nearest, value / limit if math.isfinite(limit) else 0.0)
        recent.add(step, loss, grad_norm)
    return alarms, nearest


if __name__ == "__main__":
    main()
