"""Compares the training step on two cores with that of a program in PyTorch, side by side.

    uv run --with torch==2.15.0 python -m benchmarks.step_torch [--rounds 15] [OVERRIDE ...]

Both train the decoder of jobs/quickstart.yaml, with overrides, from the same initial weights on the
same batch: forward and backward pass in float32, clipping, Muon and AdamW. PyTorch runs on two
threads, eagerly and with `torch.compile`, and Slipway's step on one and on two CPU devices. Each is
a process of its own. They take turns, while the others wait for their input: a round is a few
steps of each, of which the first is not timed.

Prints the median time of a step, and the median and the quartiles of the ratios to PyTorch in the
same round. Exits with 1 when the losses of the first steps differ by more than 0.1 %.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

THREADS = 2
TOLERANCE = 1e-3
FIRST_LOSSES = 5


class Program:
    """A process that makes training steps when it is asked to."""

    def __init__(self, module: str, *arguments: str, environment: dict[str, str]):
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"benchmarks.{module}", *arguments],
            cwd=Path(__file__).parents[1],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.times_s: list[float] = []
        """Seconds per step, by round."""
        self.losses = self._steps(FIRST_LOSSES)["losses"]

    def round(self, steps: int) -> None:
        """Makes steps, and records their time."""
        self.times_s.append(self._steps(steps)["seconds"])

    def end(self) -> None:
        """Ends the process by the end of its input."""
        self._process.communicate()

    def _steps(self, count: int) -> dict[str, Any]:
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(f"{count}\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            sys.exit(f"a program has ended with exit code {self._process.wait()}")
        return json.loads(answer)


def serve(make: Callable[[int], list[float]]) -> None:
    """Answers each number of steps on standard input with their losses and the seconds per step.

    `make` makes steps and returns their losses when they are done. One more step warms up.
    """
    for line in sys.stdin:
        first, count = make(1), int(line)
        began = time.perf_counter()
        losses = make(count)
        seconds = (time.perf_counter() - began) / count
        print(json.dumps({"losses": first + losses, "seconds": seconds}), flush=True)


def main() -> int:
    """Runs the rounds, and prints the figures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("overrides", nargs="*")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="step-torch") as folder:
        programs = _programs(folder, options.overrides)
        for number in range(options.rounds):
            order = list(programs.values())
            for program in order if number % 2 else reversed(order):
                program.round(options.steps)
        for program in programs.values():
            program.end()
    _print_times(programs)
    return 0 if _losses_agree(programs) else 1


def _programs(folder: str, overrides: list[str]) -> dict[str, Program]:
    """Starts all programs, one after the other; the first one writes what PyTorch's start from."""
    found = {}
    for devices in (1, 2):
        flags = f"--xla_force_host_platform_device_count={devices}"
        environment = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags}
        name = f"Slipway, {devices} device{'s' if devices > 1 else ''}"
        found[name] = Program("step_torch_slipway", folder, *overrides, environment=environment)
    threads = {"OMP_NUM_THREADS": str(THREADS)}
    for name, options in (("PyTorch, eager", []), ("PyTorch, compiled", ["--compile"])):
        found[name] = Program("step_torch_decoder", folder, *options, environment=threads)
    return found


def _print_times(programs: dict[str, Program]) -> None:
    others = {name: one for name, one in programs.items() if name.startswith("PyTorch")}
    for name, one in programs.items():
        print(f"{name:18} {1000 * statistics.median(one.times_s):8.1f} ms a step")
        for other in others if name not in others else ():
            pairs = zip(one.times_s, others[other].times_s, strict=True)
            low, ratio, high = statistics.quantiles(ours / theirs for ours, theirs in pairs)
            print(f"    {ratio:.2f} of {other}; quartiles {low:.2f}, {high:.2f}")


def _losses_agree(programs: dict[str, Program]) -> bool:
    columns = list(zip(*(one.losses for one in programs.values()), strict=True))
    largest = max((max(column) - min(column)) / min(column) for column in columns)
    first, last = (statistics.mean(columns[step]) for step in (0, -1))
    print(f"losses of {len(columns)} steps, {first:.4f} to {last:.4f}, differ by {largest:.1e}")
    return largest <= TOLERANCE


if __name__ == "__main__":
    sys.exit(main())
