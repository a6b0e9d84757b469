"""Measures what checks of hosts against each other cost, within one run.

    python benchmarks/host_checks.py [--steps 200] [--every 10]

Runs the quickstart job on two simulated hosts, with a check every few steps. Prints the median time
of a step, the median time of a check, and the share of the run that checks take at the interval of
500 steps that the documentation uses. The first check of a run, which also warms up, is left out.
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
CLUSTER = "{accelerator: cpu, hosts: 2, devices_per_host: 1, provider: {kind: local}}"
INTERVAL = 500
"""Steps between checks for which the share is printed."""


def main() -> None:
    """Runs the job, and prints the figures of process 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    from launcher import plan, run

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "cluster.yaml").write_text(CLUSTER)
        spec = plan(
            ROOT / "jobs" / "quickstart.yaml",
            cluster=str(folder / "cluster.yaml"),
            overrides=[
                "name=checks", f"steps={options.steps}", "eval=null", "sample=null",
                f"integrity.replay_every={options.every}",
            ],
            runs=folder / "runs",
        )  # fmt: skip
        run(spec, progress=False)
        events = (folder / "runs" / "checks" / "events.jsonl").read_text().splitlines()
        _print([json.loads(line) for line in events])


def _print(events: list[dict[str, Any]]) -> None:
    step_s = statistics.median(event["step_time_s"] for event in events if event["event"] == "step")
    first_s, *checks_s = check_times_s(events)
    low_s, check_s, high_s = statistics.quantiles(checks_s, n=4)
    share = check_s / (INTERVAL * step_s + check_s)
    print(f"a step takes {1000 * step_s:.1f} ms, the median of the run")
    print(
        f"a check takes {1000 * check_s:.1f} ms, the median of {len(checks_s)} (quartiles "
        f"{1000 * low_s:.1f} to {1000 * high_s:.1f}); the first one took {1000 * first_s:.0f} ms"
    )
    print(f"one check in {INTERVAL} steps takes {100 * share:.2f} % of the time")


def check_times_s(events: Iterable[dict[str, Any]]) -> Iterator[float]:
    """Yields the duration of each check of process 0, in seconds."""
    began_s = 0.0
    for event in events:
        if (event["event"], event.get("name"), event.get("process")) != ("phase", "check", 0):
            continue
        if event["edge"] == "begin":
            began_s = event["time"]
        else:
            yield event["time"] - began_s


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
