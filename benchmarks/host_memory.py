"""Compares the forecast of a host's memory with measured peaks: steps, a save and a restore.

    python benchmarks/host_memory.py [--calibrate] [CASE ...]

Trains each case on one or two simulated hosts: processes that start as the launcher starts them,
with the memory for in-memory checkpoints that a host's agent has. A first attempt initializes,
trains, and saves while it trains on. A second one restores, and ends. Private memory is read from
/proc/PID/smaps_rollup every 20 ms (Pss_Anon), and that of in-memory checkpoints from their files.

Prints, for the host with the highest peak, forecast and measured MiB of each phase with their
ratio. The agents and the standby process of a host do not run here and are left out of both.
`run` is the time from the first step to the first save. Exits with 1 when a ratio of run, save or
restore is not within 15 %.

`--calibrate` runs other cases instead, from which the constants of
trainer/contract/estimates/host_memory.py come, and prints them.
"""

import argparse
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from launcher.cluster.schema import Cluster, ClusterRef
from launcher.host.checkpoint_memory import CheckpointMemory
from launcher.planning.planner import TrainingLaunch, make_launch
from trainer.contract.config.job import Job
from trainer.contract.config.loader import Loaded, dump
from trainer.contract.config.yaml import parse
from trainer.contract.protocol.environment import (
    ATTEMPT,
    EVENTS_FD,
    HOST_MEMORY,
    JAX_COORDINATOR_ADDRESS,
)

ROOT = Path(__file__).parents[1]
MIB = 1 << 20
LIMIT = 0.15
CHECKED = ("run", "save", "restore")
NOT_HERE = ("agents", "standby process")
POLL_S = 0.02


@dataclass(frozen=True)
class Case:
    """A model on a number of hosts."""

    hosts: int
    devices: int
    layers: int
    d_model: int
    d_ff: int
    seq_len: int
    global_batch: int = 8
    more: str = ""
    """Further keys of `checkpoint`."""


CASES = {
    "small-1": Case(hosts=1, devices=1, layers=3, d_model=384, d_ff=1536, seq_len=128),
    "small-2": Case(hosts=2, devices=1, layers=3, d_model=384, d_ff=1536, seq_len=128),
    "large-1": Case(hosts=1, devices=2, layers=6, d_model=896, d_ff=3072, seq_len=64),
    "large-2": Case(hosts=2, devices=1, layers=6, d_model=896, d_ff=3072, seq_len=64),
    "slots-2": Case(
        hosts=2, devices=1, layers=5, d_model=512, d_ff=2048, seq_len=128,
        more="in_memory_every_steps: 1",
    ),
}  # fmt: skip
"""Cases that no constant comes from."""
CALIBRATION = {
    "tiny": Case(hosts=1, devices=1, layers=4, d_model=256, d_ff=1024, seq_len=128),
    "two": Case(hosts=2, devices=1, layers=4, d_model=768, d_ff=3072, seq_len=128),
    "wide": Case(
        hosts=1, devices=1, layers=4, d_model=1024, d_ff=4096, seq_len=128, global_batch=4
    ),
}
JOB = """\
name: memory
steps: {steps}
model: {{layers: {layers}, d_model: {d_model}, heads: {heads}, d_ff: {d_ff}}}
data: {{source: stdlib, seq_len: {seq_len}, global_batch: {global_batch}}}
eval: null
sample: null
checkpoint: {{every_steps: 2, {more}}}
deadlines: {{step_s: 600, start_s: 3000, compile_s: 3000, save_s: 3000}}
"""
STEPS, FURTHER_STEPS = 3, 1


def main() -> int:
    """Runs the cases that are named, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("cases", nargs="*")
    options = parser.parse_args()
    known = CALIBRATION if options.calibrate else CASES
    is_good = True
    print(f"{'case':9} {'phase':8} {'forecast':>9} {'measured':>9}  ratio")
    for name in options.cases or known:
        with tempfile.TemporaryDirectory(prefix="host-memory") as folder:
            measured = measure(known[name], Path(folder))
        is_good &= compare(name, known[name], measured)
        if options.calibrate:
            print_constants(known[name], measured)
    return 0 if is_good else 1


def compare(name: str, case: Case, measured: dict[str, float]) -> bool:
    """Prints a line for each phase; returns whether the limit holds."""
    is_good = True
    for phase, parts in forecast(case).items():
        expected = sum(parts.values())
        ratio = expected / measured[phase]
        is_good &= phase not in CHECKED or abs(ratio - 1) <= LIMIT
        print(
            f"{name:9} {phase:8} {expected / MIB:9.0f} {measured[phase] / MIB:9.0f}  {ratio:.2f}",
            flush=True,
        )
    return is_good


def print_constants(case: Case, measured: dict[str, float]) -> None:
    """Prints what is left of the measured bytes when the exact parts are taken away."""
    found = forecast(case)
    arrays = found["run"]["arrays"]
    figures = {
        "PROCESS_BYTES": measured["imported"],
        "CPU_PROGRAMS_BYTES": measured["compiled"] - measured["imported"] - arrays,
        "step": measured["run"] - measured["compiled"],
        "staging, in states": (measured["save"] - measured["run"]) / arrays * MIB,
        "read buffers": measured["restore"] - measured["imported"] - arrays,
        "initialization": measured["compile"] - measured["compiled"],
    }
    for name, size in figures.items():
        print(f"  {name}: {size / MIB:.2f} (forecast {forecast_of(name, found) / MIB:.0f})")


def forecast_of(name: str, found: dict[str, dict[str, int]]) -> float:
    """Returns the forecast part that a measured figure belongs to; 0 for others."""
    every = {part: size for parts in found.values() for part, size in parts.items()}
    part = {"PROCESS_BYTES": "process", "CPU_PROGRAMS_BYTES": "programs"}.get(name, name)
    return every.get(part, 0)


def forecast(case: Case) -> dict[str, dict[str, int]]:
    """Returns the parts of each phase that run in this benchmark."""
    launch = planned(case, Path("unused"), STEPS)
    return {
        phase.name: {name: size for name, size in phase.parts.items() if name not in NOT_HERE}
        for phase in launch.host_memory.phases
    }


def planned(case: Case, folder: Path, steps: int) -> TrainingLaunch:
    """Returns the launch of a case; a run's folder is inside `folder`."""
    text = JOB.format(steps=steps, heads=case.d_model // 64, **vars(case))
    job = Job.model_validate(parse(text).value)
    cluster = Cluster.model_validate(
        {
            "accelerator": "cpu",
            "hosts": case.hosts,
            "devices_per_host": case.devices,
            "provider": {"kind": "local"},
        }
    )
    launch = make_launch(
        Loaded(job, "job", {}), Loaded(cluster, "cluster", {}), folder, ClusterRef(name="cpu")
    )
    assert isinstance(launch, TrainingLaunch)
    return launch


def measure(case: Case, folder: Path) -> dict[str, float]:
    """Returns the peak in bytes of each phase, for the host that needs the most."""
    launch = planned(case, folder, STEPS)
    memories = [
        CheckpointMemory("127.0.0.1", launch.in_memory_bytes) if launch.in_memory_bytes else None
        for _ in range(case.hosts)
    ]
    peaks: dict[str, float] = defaultdict(float)
    for attempt, steps in ((1, STEPS), (2, STEPS + FURTHER_STEPS)):
        for phase, size in attempt_peaks(case, folder, attempt, steps, memories).items():
            # A first attempt has nothing to restore; a second one has other memory in use before.
            if (phase == "restore") == (attempt == 2):
                peaks[phase] = max(peaks[phase], size)
    for memory in memories:
        if memory:
            memory.close()
    return peaks


def attempt_peaks(
    case: Case, folder: Path, attempt: int, steps: int, memories: list[CheckpointMemory | None]
) -> dict[str, float]:
    """Runs an attempt on all hosts, and returns the peaks of its phases."""
    launch = planned(case, folder, steps)
    launch.run_dir.mkdir(exist_ok=True)
    (launch.run_dir / "job.yaml").write_text(dump(launch.job))
    (launch.run_dir / "plans").mkdir(exist_ok=True)
    plan = launch.run_dir / "plans" / f"{attempt:04}.json"
    plan.write_text(launch.plan.model_dump_json())
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        coordinator = f"127.0.0.1:{probe.getsockname()[1]}"
    hosts = [
        Host(launch, process, attempt, coordinator, folder, memories[process])
        for process in range(case.hosts)
    ]
    while any(host.is_running for host in hosts):
        for host in hosts:
            host.sample()
        if attempt > 1 and all(host.has_restored for host in hosts):
            for host in hosts:
                host.end()
            break
        time.sleep(POLL_S)
    for host in hosts:
        if host.status and not (attempt > 1 and host.has_restored):
            sys.exit(f"host {host.process} failed:\n{host.log.read_text()[-3000:]}")
    phases = {phase for host in hosts for phase in host.peaks}
    return {phase: max(host.peaks.get(phase, 0) for host in hosts) for phase in phases}


class Host:
    """A trainer that runs, the phase it is in, and the peak of each phase."""

    def __init__(
        self,
        launch: TrainingLaunch,
        process: int,
        attempt: int,
        coordinator: str,
        folder: Path,
        memory: CheckpointMemory | None,
    ) -> None:
        self.process, self._memory = process, memory
        self.log = folder / f"log-{process}-{attempt}"
        self.peaks: dict[str, float] = defaultdict(float)
        self._phase = "imported"
        read_fd, write_fd = os.pipe()
        environment = {
            **os.environ,
            **launch.environment(process),
            "PYTHONPATH": str(ROOT),
            "XDG_CACHE_HOME": str(folder / "cache"),
            JAX_COORDINATOR_ADDRESS: coordinator,
            ATTEMPT: str(attempt),
            EVENTS_FD: str(write_fd),
        }
        if memory:
            environment[HOST_MEMORY] = str(memory.address)
        with self.log.open("w") as log:
            self._child = subprocess.Popen(
                launch.command(process), env=environment, pass_fds=[write_fd], cwd=folder,
                stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
        os.close(write_fd)
        threading.Thread(target=self._follow, args=(read_fd,), daemon=True).start()

    @property
    def is_running(self) -> bool:
        return self._child.poll() is None

    @property
    def status(self) -> int | None:
        return self._child.returncode

    @property
    def has_restored(self) -> bool:
        return "restored" in self.peaks

    def end(self) -> None:
        """Kills the trainer."""
        self._child.kill()
        self._child.wait()

    def sample(self) -> None:
        """Counts the present memory of the host to the peak of its phase."""
        phase, size = self._phase, self._private_bytes()
        if phase == "compiled":  # what stays, not a peak
            self.peaks[phase] = size or self.peaks[phase]
        else:
            self.peaks[phase] = max(self.peaks[phase], size)

    def _private_bytes(self) -> int:
        try:
            lines = Path(f"/proc/{self._child.pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            return 0
        private = sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss_Anon:"))
        return private + self._slot_bytes()

    def _slot_bytes(self) -> int:
        slots = self._memory._slots.all if self._memory else []
        return sum(os.fstat(slot.fd).st_blocks * 512 for slot in slots)

    def _follow(self, fd: int) -> None:
        for event in events(fd):
            if (phase := next_phase(self._phase, event)) != self._phase:
                self.sample()  # also when a phase is shorter than the interval
                self._phase = phase


def events(fd: int) -> Iterator[dict[str, Any]]:
    """Yields the events that a trainer writes into a pipe."""
    with os.fdopen(fd) as lines:
        for line in lines:
            yield json.loads(line)


def next_phase(now: str, event: dict[str, Any]) -> str:
    """Returns the phase after an event: imported, prepare, restore, compile, compiled, run, save.

    What follows a save belongs to it: the next step runs while it is written.
    """
    name = event.get("name") if event["event"] == "phase" else None
    is_begin = event.get("edge") == "begin"
    if name == "data":
        return "prepare" if is_begin else "prepared"
    if name in ("restore", "compile"):
        return name if is_begin else ("compiled" if name == "compile" else "restored")
    if name == "train" and is_begin:
        return "run"
    if name == "save":
        return "save"
    return now


if __name__ == "__main__":
    sys.exit(main())
