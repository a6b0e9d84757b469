"""Trainer processes started by hand: what the launcher does, without the launcher."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.jobs import corpus_of, job_of
from tests.support.xla_flags import FAST_COMPILATION
from trainer.contract.config.job import Job
from trainer.contract.config.loader import dump
from trainer.contract.planning.plan import World
from trainer.contract.planning.planner import resolve
from trainer.contract.planning.save_interval import SaveStatistics
from trainer.contract.records.teacher import teacher_model
from trainer.model import custom

DEADLINE_S = 240
STACKS_S = 1.0
"""In which a process that hangs writes the stacks of its threads."""


@dataclass(frozen=True)
class Ended:
    """A run that is over."""

    run_dir: Path
    codes: list[int]
    outputs: list[str]
    events: list[dict[str, Any]] = field(repr=False)

    def lines(self) -> list[dict[str, Any]]:
        """All of metrics.jsonl."""
        text = (self.run_dir / "metrics.jsonl").read_text(encoding="utf-8")
        return [json.loads(line) for line in text.splitlines()]

    def steps(self) -> list[dict[str, Any]]:
        return [line for line in self.lines() if "loss" in line]

    def losses(self) -> list[float]:
        return [line["loss"] for line in self.steps()]


def run(
    job: Job | dict[str, Any], world: World, run_dir: Path, devices: int | None = None,
    attempt: int = 1,
) -> Ended:  # fmt: skip
    """Runs a job on all processes of a world, on CPU devices, and waits for their end.

    `devices` gives each process another number of devices than the plan has.
    """
    job = job if isinstance(job, Job) else job_of(**job)
    here = world.model_copy(update={"devices_per_host": devices or world.devices_per_host})
    return wait(run_dir, start(job, world, run_dir, attempt, here=here))


def start(
    job: Job,
    world: World,
    run_dir: Path,
    attempt: int = 1,
    here: World | None = None,
    host_env: Mapping[int, Mapping[str, str]] | None = None,
    saves: SaveStatistics | None = None,
) -> list[subprocess.Popen[bytes]]:
    """Starts an attempt of a job on all processes of a world.

    `here` has other devices than the plan; `host_env` gives a process variables of its own.
    `saves` is what the launcher would know about earlier attempts.
    """
    port = write(job, world, run_dir, attempt, saves)
    return [
        _start(
            run_dir,
            process,
            {
                **environment(here or world, run_dir, process, port, attempt),
                **(host_env or {}).get(process, {}),
            },
        )
        for process in range(world.processes)
    ]


def write(
    job: Job, world: World, run_dir: Path, attempt: int = 1, saves: SaveStatistics | None = None
) -> int:
    """The run directory's job and plan; returns a port for the coordinator."""
    (run_dir / "plans").mkdir(parents=True, exist_ok=True)
    (run_dir / "job.yaml").write_text(dump(job), encoding="utf-8")
    plan = resolve(job, world, corpus_of(job), custom.parameters, teacher_model)
    if saves:
        plan = plan.model_copy(update={"save_statistics": saves})
    path = run_dir / "plans" / f"{attempt:04d}.json"
    path.write_text(plan.model_dump_json(), encoding="utf-8")
    return free_port()


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(
    world: World, run_dir: Path, process: int, port: int, attempt: int = 1
) -> dict[str, str]:
    """What the launcher would set for a process.

    The compiler does not optimize: tiny programs run a few times.
    """
    flags = f"--xla_force_host_platform_device_count={world.devices_per_process}"
    return {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": f"{flags} {FAST_COMPILATION}",
        "JAX_COORDINATOR_ADDRESS": f"127.0.0.1:{port}",
        "SLIPWAY_NUM_PROCESSES": str(world.processes),
        "SLIPWAY_PROCESS_ID": str(process),
        "SLIPWAY_RUN_DIR": str(run_dir),
        "SLIPWAY_ATTEMPT": str(attempt),
    }


def _start(run_dir: Path, process: int, variables: dict[str, str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-W", "error", "-m", "trainer", str(run_dir / "job.yaml")]
    events = (run_dir / f"events-{process}.jsonl").open("wb")
    output = (run_dir / f"output-{process}.log").open("wb")
    variables["SLIPWAY_EVENTS_FD"] = str(events.fileno())
    with events, output:
        return subprocess.Popen(
            command, env=variables, stdout=output, stderr=subprocess.STDOUT,
            pass_fds=[events.fileno()],
        )  # fmt: skip


def wait(run_dir: Path, started: list[subprocess.Popen[bytes]]) -> Ended:
    """Until all have ended, within the deadline."""
    try:
        codes = [process.wait(DEADLINE_S) for process in started]
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{error}\n{_stacks(run_dir, started)}") from None
    finally:
        for process in started:
            process.kill()
            process.wait()
    numbers = range(len(started))
    return Ended(
        run_dir,
        codes,
        [(run_dir / f"output-{n}.log").read_text(errors="replace") for n in numbers],
        [
            json.loads(line)
            for n in numbers
            for line in (run_dir / f"events-{n}.jsonl").read_text().splitlines()
        ],
    )


def _stacks(run_dir: Path, started: list[subprocess.Popen[bytes]]) -> str:
    """Returns the output of processes that hang, with the stacks of their threads at its end."""
    for process in started:
        process.send_signal(signal.SIGUSR1)
    time.sleep(STACKS_S)
    logs = [(run_dir / f"output-{n}.log").read_text(errors="replace") for n in range(len(started))]
    return "\n".join(f"process {n}:\n{log}" for n, log in enumerate(logs))
