"""Measures the input pipeline: packed tokens per second, and how long a step waits for them.

    python benchmarks/input_pipeline.py [--rounds 20] [--batches 50] [--steps 100]

Alternates between batches as a trainer gets them (shuffled, packed, with segments and positions)
and plain windows of the same array that numpy stacks, with the same examples in the same order.
Prints tokens per second of both, and the median and the quartiles of the ratios of neighbouring
rounds. Then runs the quickstart on this machine, and prints the share of its steps' time that they
waited for data.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from trainer.contract.config.data import Data
from trainer.data import mixture, pipeline
from trainer.data.token_cache import Tokens

ROOT = Path(__file__).parents[1]
DATA = Data.model_validate({"source": "stdlib", "seq_len": 1024, "global_batch": 32})
SEED = 0


def main() -> None:
    """Measures and prints both."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("rounds", 20), ("batches", 50), ("steps", 100)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    _rates(options.rounds, options.batches)
    _waits(options.steps)


def _rates(rounds: int, batches: int) -> None:
    tokens = mixture.load(DATA)
    assert isinstance(tokens, Tokens)
    ours = pipeline.training_batches(tokens, DATA, SEED, (0, 1), first_step=1)
    theirs = _windows(tokens)
    pairs = [
        (_rate(batches, lambda: next(ours)), _rate(batches, lambda: next(theirs)))
        for _ in range(rounds)
    ]
    for name, rates in zip(("slipway", "numpy"), zip(*pairs, strict=True), strict=True):
        print(f"{name:8} {statistics.median(rates) / 1e6:8.1f} million tokens a second")
    low, ratio, high = statistics.quantiles(one / other for one, other in pairs)
    print(f"ratio    {ratio:8.3f}, the median of the rounds; quartiles {low:.3f}, {high:.3f}")


def _windows(tokens: Tokens) -> Iterator[np.ndarray]:
    """Yields only the same examples, as arrays (rows, seq_len + 1)."""
    order: Any = pipeline.example_order(tokens.sequences(DATA.seq_len), SEED)
    for batch in count():
        first = batch * DATA.global_batch
        starts = [order[first + row] * DATA.seq_len for row in range(DATA.global_batch)]
        yield np.stack([tokens.held_in[start : start + DATA.seq_len + 1] for start in starts])


def _rate(batches: int, following: Callable[[], object]) -> float:
    """Returns the tokens per second."""
    begin = time.perf_counter()
    for _ in range(batches):
        following()
    return batches * DATA.global_batch * DATA.seq_len / (time.perf_counter() - begin)


def _waits(steps: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        overrides = ["name=waits", f"steps={steps}", "eval=null", "sample=null", "checkpoint=null"]
        job = str(ROOT / "jobs" / "quickstart.yaml")
        launch = [sys.executable, "-m", "launcher", "--cluster", "local", job]
        subprocess.run(
            [*launch, *overrides, "--runs", folder], cwd=ROOT, check=True, stdout=subprocess.DEVNULL
        )
        file = Path(folder) / "waits" / "metrics.jsonl"
        lines = [json.loads(line) for line in file.read_text().splitlines()]
    # The first steps wait for the reader's thread to get ahead of them.
    waited, all_of_it = (
        sum(line[key] for line in lines[steps // 10 :]) for key in ("data_wait_s", "step_time_s")
    )
    print(f"quickstart: steps waited for data {waited / all_of_it:.2%} of their time")


if __name__ == "__main__":
    main()
