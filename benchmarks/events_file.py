"""Measures the size of events.jsonl, and the time of `launch status` on a large one.

    uv run python benchmarks/events_file.py --megabytes 1000

Prints the size of the events of 64 hosts, with all of them kept and as a run keeps them. Then
times `launch status` on a file of that size, with the summary that a run writes and without any.
"""

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from launcher.runs import summary
from launcher.runs.phases import is_kept
from trainer.contract.protocol.events import Event, HeartbeatEvent, StepEvent
from trainer.contract.protocol.wire import encode

HOSTS = 64
HEARTBEAT_EVERY_S = 2
STEP: dict[str, Any] = {
    "loss": 2.5,
    "learning_rate": 3e-4,
    "tokens_per_s": 1e6,
    "mfu": 0.4,
    "step_time_s": 1.0,
}
BEGIN_S = 1.8e9


def main() -> None:
    parser = argparse.ArgumentParser(
        description="The size of events.jsonl, and the time of `launch status`."
    )
    parser.add_argument("--megabytes", type=int, default=1000)
    megabytes = parser.parse_args().megabytes
    _compare_sizes()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "runs" / "large"
        run.mkdir(parents=True)
        (run / "job.yaml").touch()
        (run / "state.json").write_text('{"state": "failed", "attempt": 1}')
        _write(run / "events.jsonl", megabytes)
        without = _status(run, "without a summary")
        whole, summary.MOST_READ_BYTES = summary.MOST_READ_BYTES, 1 << 40
        began = time.monotonic()
        summary.write(run)
        read_all_s = time.monotonic() - began
        summary.MOST_READ_BYTES = whole
        with_summary = _status(run, "with a summary")
    print(f"reading all of it takes {read_all_s:.1f} s, {read_all_s / with_summary:.0f} times as")
    print(f"long as `launch status`, and {read_all_s / without:.0f} times without a summary")


def _compare_sizes() -> None:
    """Prints the bytes per host and step, and per day."""
    events = [event for host in range(HOSTS) for event in _of_a_second(host, 1)]
    every = sum(len(encode(event)) + 1 for event in events)
    kept = sum(len(encode(event)) + 1 for event in events if is_kept(event))
    for what, size in (("all events", every), ("kept", kept)):
        print(
            f"{what}: {size / HOSTS:.1f} bytes a host and step, {size * 86400 / 1e9:.3f} GB a day"
        )
    print(f"{every / kept:.0f} times smaller with {HOSTS} hosts")


def _of_a_second(host: int, step: int) -> list[Event]:
    head = {"time": BEGIN_S + step, "process": host, "attempt": 1, "received": BEGIN_S + step}
    events: list[Event] = [StepEvent(step=step, data_wait_s=0.0, **STEP).stamped(**head)]
    if step % HEARTBEAT_EVERY_S == host % HEARTBEAT_EVERY_S:
        beat = HeartbeatEvent(phase="train", step=step, cpu_probe_s=0.001)
        events.append(beat.stamped(**head))
    return events


def _write(path: Path, megabytes: int) -> None:
    step = 0
    with path.open("w") as file:
        while file.tell() < megabytes << 20:
            lines = []
            for _ in range(10_000):
                step += 1
                lines += [encode(event) for event in _of_a_second(0, step) if is_kept(event)]
            file.write("\n".join(lines) + "\n")


def _status(run: Path, how: str) -> float:
    began = time.monotonic()
    command = [sys.executable, "-m", "launcher", "status", str(run)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    took_s = time.monotonic() - began
    if process.returncode != 0:
        raise SystemExit(f"launch status ended with {process.returncode}")
    size = (run / "events.jsonl").stat().st_size
    print(f"launch status on {size / 1e6:,.0f} MB {how}: {took_s:.2f} s, {_megabytes(usage)} MB")
    return took_s


def _megabytes(usage: resource.struct_rusage) -> int:
    return usage.ru_maxrss // 1024


if __name__ == "__main__":
    main()
