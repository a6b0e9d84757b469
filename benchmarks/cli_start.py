"""Measures the start-up time of `launch --help` and `launch plan` against a bare Python.

    python benchmarks/cli_start.py

Prints the median wall time of each and its ratio to starting Python alone, in the same run. The
first round fills Python's cache of compiled modules.
"""

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROUNDS = 10
JOB = str(Path(__file__).parents[1] / "jobs" / "quickstart.yaml")
COMMANDS = {
    "python -c pass": [sys.executable, "-c", "pass"],
    "import typer, pydantic, ruamel.yaml, rich": [
        sys.executable,
        "-c",
        "import typer, pydantic, ruamel.yaml, rich.console",
    ],
    "launch --help": [sys.executable, "-m", "launcher", "--help"],
    "launch plan": [sys.executable, "-m", "launcher", "plan", JOB],
}


def main() -> None:
    """Runs all commands in each round, so that a busy moment affects all alike."""
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        for _ in range(1 + ROUNDS):
            for name, command in COMMANDS.items():
                began = time.perf_counter()
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
                seconds[name].append(time.perf_counter() - began)
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    bare = medians["python -c pass"]
    for name, median in medians.items():
        print(f"{name:44} {median:6.3f} s   {median / bare:5.1f} x python")


if __name__ == "__main__":
    main()
