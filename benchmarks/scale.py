"""Measures how start-up and the driver's work grow with the number of hosts, on this machine.

    python benchmarks/scale.py [--real 1 4 16 64] [--fed 1 16 64 256 1024 4096]
                               [--seconds 20] [--step-s 1]

Starts with real agents, on Ray nodes of this machine (up to 16; more agents share them), each with
a stub program in place of the trainer. Prints the seconds of the start, each counted from the one
before: until all Ray nodes are up, all agents are up, all programs have connected to process 0
(`met`), and the driver has received an event from the loop of each (`heard`). They grow with the
hosts, which share the machine's cores; real hosts start side by side.

Then measures the driver while the programs run: CPU time per event, and wall time per event in
`RunController.on_event` (the run's folder, the panel, the detectors of hangs and stragglers), both
also as a ratio to the first row of the same kind. All hosts send a step every `--step-s` seconds,
at the same moment, and a heartbeat every 2 s. With few hosts, an event costs mostly its call into
Ray and polls without events; with more hosts, a poll returns more events. `load` is the share of
one processor, `late` the delay from an event to its handling: the median, and the quantile 0.99.

Ends with "fed" hosts, whose agents only send events. A few actors answer for all of them, so
nothing starts and no program runs, but each host is polled through Ray by a separate call. These
actors share the cores with the driver: with a `load` near 1, events wait for each other, and none
may wait so long that its host counts as silent (10 s).

Each row is measured in a separate process.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.faults import workplace

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 600.0


def main() -> None:
    """Prints row by row, as they are measured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--real", type=int, nargs="*", default=[1, 4, 16, 64])
    parser.add_argument("--fed", type=int, nargs="*", default=[1, 16, 64, 256, 1024, 4096])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--step-s", type=float, default=1.0)
    options = parser.parse_args()
    starts = f"{'nodes':>7} {'agents':>7} {'met':>6} {'heard':>6}"
    print(f"{'agents':>11} {starts} {'events/s':>9} {'CPU':>14} {'handling':>14} load  late")
    for kind, numbers in (("real", options.real), ("fed", options.fed)):
        first: dict[str, Any] = {}
        for hosts in numbers:
            row = _measure(kind, hosts, options)
            first = first or row
            print(f"{hosts:5} {kind:>5} {_starts(kind, row)} {_events(row, first)}", flush=True)


def _measure(kind: str, hosts: int, options: argparse.Namespace) -> dict[str, Any]:
    with workplace() as (folder, traces):
        arguments = [kind, hosts, options.seconds, options.step_s, folder]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.scale_worker", *map(str, arguments)],
            cwd=ROOT,
            env={**traces.environment, "XDG_STATE_HOME": f"{folder}/state"},
            stdout=subprocess.PIPE,
            timeout=TIMEOUT_S,
            check=True,
        )
    return json.loads(done.stdout.splitlines()[-1])


def _starts(kind: str, row: dict[str, Any]) -> str:
    if kind == "fed":
        return f"{'':29}"
    return (
        f"{row['nodes_s']:5.1f} s {row['agents_s']:5.1f} s "
        f"{row['met_s']:4.1f} s {row['reported_s']:4.1f} s"
    )


def _events(row: dict[str, Any], first: dict[str, Any]) -> str:
    return (
        f"{row['events'] / row['measured_s']:9,.0f} {_each(row, first, 'cpu_s')} "
        f"{_each(row, first, 'handling_s')} {row['cpu_s'] / row['measured_s']:4.2f}  "
        f"{row['late_median_s']:.2f} s, {row['late_most_s']:.2f} s"
    )


def _each(row: dict[str, Any], first: dict[str, Any], name: str) -> str:
    """Returns the milliseconds per event, and the ratio to the first row's, as text."""
    each, of_first = (1000 * one[name] / one["events"] for one in (row, first))
    return f"{each:5.2f} ms {each / of_first:4.2f}x"


if __name__ == "__main__":
    main()
