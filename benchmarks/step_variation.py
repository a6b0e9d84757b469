"""Measures what standby processes and the coordinated garbage collection do to the step time.

    python benchmarks/step_variation.py [--hosts 4] [--steps 300] [--rounds 3]

Runs the same job on simulated hosts of this machine in three ways, one after the other in each
round: "plain" with neither, "standby" with a standby process on each host, "collection" with
Python's garbage collected at the same steps on all hosts. Steps before the standby processes are
ready, and an equal number in the other ways, do not count. Prints the median and the 99th
percentile of the step time of each way, and the medians of the rounds' ratios to "plain".
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.fault_injection import hook

LEFT_OUT_STEPS = 600
"""Four standby processes take half a minute to import everything beside four that train."""
JOB = """\
name: {name}
steps: {steps}
model: {{layers: 2, d_model: 64, heads: 2, d_ff: 192}}
data: {{source: stdlib, tokenizer: bytes, seq_len: 64, global_batch: 8}}
mesh: {{data: -1, fsdp: 1}}
eval: null
sample: null
checkpoint: null
retries: {{standby_after_s: {standby_after_s}}}
"""
CLUSTER = "{{accelerator: cpu, hosts: {hosts}, devices_per_host: 1, provider: {{kind: local}}}}"
NO_COLLECTION = """\
def change(module):
    module.CollectionCallback.__enter__ = lambda self: self
    module.CollectionCallback.__exit__ = lambda self, *_: None
    module.CollectionCallback.before_step = lambda self, step: None
"""
WAYS = {"plain": (False, False), "standby": (True, False), "collection": (False, True)}
"""Name -> whether there are standby processes, and whether collections are coordinated."""


def main() -> None:
    """Runs the rounds and prints the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("hosts", 4), ("steps", 300), ("rounds", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    rounds: list[dict[str, tuple[float, float]]] = []
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as folder:
            rounds.append({way: _measured(way, Path(folder), options) for way in WAYS})
    print(f"{options.hosts} hosts, {options.rounds} rounds of {options.steps} steps")
    print(f"{'':12}{'median':>12}{'ratio':>8}{'99 %':>12}{'ratio':>8}")
    for way in WAYS:
        columns = ""
        for column in range(2):
            seconds = statistics.median(each[way][column] for each in rounds)
            ratio = statistics.median(each[way][column] / each["plain"][column] for each in rounds)
            columns += f"{1000 * seconds:9.1f} ms{ratio:8.3f}"
        print(f"{way:12}{columns}")


def _measured(way: str, folder: Path, options: argparse.Namespace) -> tuple[float, float]:
    """Returns the median and the 99th percentile of the step time of one run, in seconds."""
    has_standby, is_coordinated = WAYS[way]
    (own := folder / way).mkdir()
    paths = [] if is_coordinated else [str(hook(own, "trainer.callbacks", NO_COLLECTION, ""))]
    job, cluster = own / "job.yaml", own / "cluster.yaml"
    steps = options.steps + LEFT_OUT_STEPS
    after_s = "0" if has_standby else "null"
    job.write_text(JOB.format(name=way, steps=steps, standby_after_s=after_s))
    cluster.write_text(CLUSTER.format(hosts=options.hosts))
    path = os.pathsep.join([*paths, os.environ.get("PYTHONPATH", str(Path.cwd()))])
    subprocess.run(
        [sys.executable, "-m", "launcher", "--cluster", str(cluster), str(job)],
        cwd=own,
        env={**os.environ, "PYTHONPATH": path},
        check=True,
        stdout=subprocess.DEVNULL,
    )
    lines = (own / "runs" / way / "metrics.jsonl").read_text().splitlines()
    times = [json.loads(line)["step_time_s"] for line in lines][LEFT_OUT_STEPS:]
    return statistics.median(times), statistics.quantiles(times, n=100)[98]


if __name__ == "__main__":
    main()
