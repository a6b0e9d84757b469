"""How start-up and the supervising process's work grow with the number of hosts, on this machine.

    python benchmarks/scale.py [--real 1 4 16 64] [--fed 1 16 64 256 1024 4096]
                               [--seconds 20] [--step-s 1]

First real agents, on Ray nodes of this machine (up to 16; more agents share them), each with a stub
program in place of the trainer. The start, in seconds, each figure after the one before: until all
Ray nodes are up, until all agents are, until all programs have met at process 0, and until all have
been heard in their loop. That grows with the hosts, since they share the machine's cores: on real
hosts the agents start side by side.

Then the supervising process while the programs run: what it takes of a processor for each event,
and how long each is in `RunController.on_event` by the wall clock (the run's folder, the panel, the
watch for hangs and slow hosts), both also against the first row of the same kind. A host sends a
step each `--step-s` seconds, all hosts at once, and a heartbeat every 2 s. With few hosts most of
an event's price is that of a call into Ray and of turns in which nothing comes; the more there are,
the more come with one look. `load` is the part of one processor that is used, `late` how long after
it was said an event is handled: the median, and what 99 % are below.

Last "fed" hosts: agents that only send events. A few actors answer for all of them, so that nothing
starts and no program runs, but every host is polled through Ray by a call of its own, and what
comes goes the same way. These actors share the cores with what is measured: where `load` comes near
1, events wait for each other, and none may wait so long that its host looks silent (10 s).

Each row is of a process of its own.
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
    """Row by row, as they are measured."""
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
        words = [kind, hosts, options.seconds, options.step_s, folder]
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.scale_worker", *map(str, words)],
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
    """Milliseconds an event, and the ratio to the first row's."""
    each, of_first = (1000 * one[name] / one["events"] for one in (row, first))
    return f"{each:5.2f} ms {each / of_first:4.2f}x"


if __name__ == "__main__":
    main()
