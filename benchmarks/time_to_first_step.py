"""Measures the time to the first step: `launch`, and the same processes started by hand.

    python benchmarks/time_to_first_step.py [--hosts 1 2 4] [--devices 2] [--rounds 3]

For each number of hosts: seconds from the start of `launch` to the end of step 1, the same for one
`python -m trainer` per host without any launcher, and the ratio, as medians of the rounds with the
lowest and the highest. The difference is what Ray, the reservation and the checks cost. "cold" has
an empty compile cache, "warm" a filled one; "up" is warm, on a cluster that `launch up` has
started. A first launch, which is not counted, lets Python keep its compiled modules.
"""

import argparse
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEADLINE_S = 600
STATES = ("cold", "warm", "up")
READY_S = 5.0
"""Seconds in which the trainers that `launch up` has started import everything."""


def main() -> None:
    """Measures both ways alternately, for each number of hosts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--hosts", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"{'hosts':>5}  {'state':5}  {'launch, s':>18}  {'by hand, s':>18}  {'ratio':>18}")
    with tempfile.TemporaryDirectory() as modules:
        os.environ["PYTHONPYCACHEPREFIX"] = modules
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        with tempfile.TemporaryDirectory() as folder:
            _write_cluster(Path(folder), 1, options.devices)
            _launch(Path(folder), "cold")
        for hosts in options.hosts:
            rounds = [_measured(hosts, options.devices) for _ in range(options.rounds)]
            for state in STATES:
                found = [each[state] for each in rounds]
                launched, by_hand = zip(*found, strict=True)
                ratios = [one / other for one, other in found]
                columns = "  ".join(map(_spread, (launched, by_hand, ratios)))
                print(f"{hosts:5}  {state:5}  {columns}", flush=True)


def _spread(numbers: Sequence[float]) -> str:
    """Returns the median, the lowest and the highest number."""
    median = statistics.median(numbers)
    return f"{median:5.2f} ({min(numbers):.2f}-{max(numbers):.2f})".rjust(18)


def _measured(hosts: int, devices: int) -> dict[str, tuple[float, float]]:
    """Returns the seconds of `launch` and by hand, for each state."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        _write_cluster(folder, hosts, devices)
        cold = _launch(folder, "cold"), _by_hand(folder, hosts, devices, "cold")
        warm = _launch(folder, "warm"), _by_hand(folder, hosts, devices, "warm")
        _kept(folder, "up")
        time.sleep(READY_S)
        try:
            up = _launch(folder, "up"), warm[1]
        finally:
            _kept(folder, "down")
        return dict(zip(STATES, (cold, warm, up), strict=True))


def _kept(folder: Path, verb: str) -> None:
    """Starts or ends the warm cluster."""
    command = [sys.executable, "-m", "launcher", verb, str(folder / "cluster.yaml")]
    environment = _environment(folder, "launch", "warm")
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)


def _write_cluster(folder: Path, hosts: int, devices: int) -> None:
    (folder / "cluster.yaml").write_text(
        f"{{accelerator: cpu, hosts: {hosts}, devices_per_host: {devices}, "
        "provider: {kind: local}}"
    )


def _environment(folder: Path, way: str, cache: str) -> dict[str, str]:
    """Both ways, with separate caches, so that neither warms the other's."""
    caches = folder / f"cache-{way}"
    if cache == "cold":
        shutil.rmtree(caches, ignore_errors=True)
    return {**os.environ, "XDG_CACHE_HOME": str(caches), "PYTHONPATH": str(ROOT)}


def _launch(folder: Path, cache: str) -> float:
    runs = folder / f"runs-{cache}"
    command = [sys.executable, "-m", "launcher", "--cluster", str(folder / "cluster.yaml")]
    command += ["--runs", str(runs), str(ROOT / "jobs" / "quickstart.yaml")]
    # No checkpoint: the processes by hand would find it and resume from it.
    command += ["steps=2", "eval=null", "sample=null", "checkpoint=null"]
    began = time.time()
    environment = _environment(folder, "launch", cache)
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    events = (runs / "quickstart" / "events.jsonl").read_text().splitlines()
    steps = [event for event in map(json.loads, events) if event["event"] == "step"]
    return min(event["time"] for event in steps) - began


def _by_hand(folder: Path, hosts: int, devices: int, cache: str) -> float:
    """Starts one process per host with the run's job and plan, without the launcher."""
    run_dir = folder / f"runs-{cache}" / "quickstart"
    (run_dir / "metrics.jsonl").unlink()
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    began = time.time()
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", "trainer", str(run_dir / "job.yaml")],
            stdout=subprocess.DEVNULL,
            env={
                **_environment(folder, "by-hand", cache if process == 0 else "shared"),
                "JAX_COORDINATOR_ADDRESS": coordinator,
                "JAX_PLATFORMS": "cpu",
                "SLIPWAY_NUM_PROCESSES": str(hosts),
                "SLIPWAY_PROCESS_ID": str(process),
                "SLIPWAY_RUN_DIR": str(run_dir),
                "XLA_FLAGS": f"--xla_force_host_platform_device_count={devices}",
            },
        )
        for process in range(hosts)
    ]
    try:
        return _wait_for_metrics(run_dir / "metrics.jsonl", processes) - began
    finally:
        for process in processes:
            process.wait(DEADLINE_S)


def _wait_for_metrics(path: Path, processes: list[subprocess.Popen[bytes]]) -> float:
    deadline = time.time() + DEADLINE_S
    while time.time() < deadline:
        if path.exists() and path.stat().st_size:
            return time.time()
        if all(process.poll() is not None for process in processes):
            raise ChildProcessError("the processes by hand ended without a step")
        time.sleep(0.01)
    raise TimeoutError(f"no step within {DEADLINE_S} s")


if __name__ == "__main__":
    main()
