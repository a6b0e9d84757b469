"""Measures the overhead of Slipway's loop over a hand-written one, in the same processes.

    python benchmarks/step_overhead.py [--hosts 2] [--devices 2] [--rounds 40] [--steps 7]

Starts one process per host through the launcher's gang. In each, Slipway's loop runs, with data
pipeline, metrics and events. Every few steps, a plain jitted loop over the same model and batch
runs instead (step_overhead_worker.py). Prints the median step time of both, and the median and the
quartiles of the ratios of neighbouring rounds: single rounds differ by a tenth.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
WORKER = Path(__file__).with_name("step_overhead_worker.py")


@dataclass(frozen=True)
class Worker:
    """The program that the gang runs, in the environment of a launch."""

    launch: Any
    options: argparse.Namespace
    failure_grace_s: float = 2.0

    def standby_command(self, process: int, *, check: bool) -> None:
        return None

    def command(self, process: int) -> list[str]:
        job_file = str(self.launch.run_dir / "job.yaml")
        return [sys.executable, str(WORKER), job_file, str(self.options.rounds)]

    def environment(self, process: int) -> dict[str, str]:
        return self.launch.environment(process)


def main() -> None:
    """Launches the workers, and prints the figures of process 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("hosts", 2), ("devices", 2), ("rounds", 40), ("steps", 7)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        cluster_file = Path(folder) / "cluster.yaml"
        cluster_file.write_text(
            f"{{accelerator: cpu, hosts: {options.hosts}, devices_per_host: {options.devices}, "
            "provider: {kind: local}}"
        )
        _launch(options, cluster_file, Path(folder))


def _launch(options: argparse.Namespace, cluster_file: Path, folder: Path) -> None:
    from launcher.cluster.schema import ClusterRef, find_cluster
    from launcher.gang.connect import gather
    from launcher.planning.planner import make_launch
    from launcher.providers.local import provider
    from launcher.runs.directory import RunDir
    from trainer.contract.config.job import Job
    from trainer.contract.config.loader import load

    overrides = [f"steps={options.rounds * options.steps}", "eval=null", "sample=null"]
    job = load(ROOT / "jobs" / "quickstart.yaml", Job, overrides)
    launch = make_launch(job, find_cluster(str(cluster_file)), folder, ClusterRef())
    with RunDir.create(launch) as run:
        hosts = provider.start(launch.plan.world)
        with hosts, gather(hosts, launch.plan.world, run.folder) as crew:
            outcome = crew.run(Worker(launch, options))
        if not outcome.ok:
            sys.exit("\n".join([*outcome.tail, outcome.reason]))
        times = json.loads((run.folder / "times.json").read_text())
    slipway, plain = (1000 * statistics.median(times[kind]) for kind in ("slipway", "plain"))
    print(f"{options.hosts} hosts x {options.devices} devices, {options.rounds} rounds of each")
    print(f"plain loop    {plain:8.1f} ms a step")
    print(f"slipway       {slipway:8.1f} ms a step")
    pairs = zip(times["slipway"], times["plain"], strict=True)
    low, ratio, high = statistics.quantiles(ours / theirs for ours, theirs in pairs)
    print(f"ratio         {ratio:8.3f}, the median of the rounds; quartiles {low:.3f}, {high:.3f}")


if __name__ == "__main__":
    main()
