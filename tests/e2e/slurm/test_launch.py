"""Runs as jobs of a real Slurm: queued, trained, preempted and requeued, stopped, nothing left."""

import hashlib
import json
import os
import secrets
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher.core.exit_codes import BAD_USAGE, INTERRUPTED, JOB_FAILED, NO_CLUSTER, OK
from launcher.providers.slurm.provider import NODE
from launcher.runs.slurm_job import SlurmJob
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch
from tests.support.processes import holds, run_launcher, wait_until, written
from tests.support.slurm_cluster import NEEDED, WHY_NOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not NEEDED, reason=WHY_NOT)]
ASKS_FOR_A_SECRET = """\
import hashlib, os, pathlib, time
waits = pathlib.Path(os.environ["SLIPWAY_RUN_DIR"], "waits")
if os.environ["SLIPWAY_PROCESS_ID"] == "0":
    waits.touch()
    while waits.exists():
        time.sleep(0.1)
print(hashlib.sha256(os.environ["A_SECRET"].encode()).hexdigest())
"""
SAME = ("step", "loss", "examples", "learning_rate", "tokens")
SAVING = "checkpoint={every_steps: 20, keep: 2}"


def start(project: Path, traces: Traces, name: str, *words: str) -> Launch:
    return Launch(project, traces, name, ["-c", "slurm.yaml", "job.yaml", f"name={name}", *words])


def curve(folder: Path) -> list[list[Any]]:
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    return [[line[key] for key in SAME] for line in lines if "loss" in line]


def ended(job_id: str) -> str:
    """Its last state, as Slurm remembers it."""
    shown = subprocess.run(["scontrol", "show", "job", job_id], capture_output=True, text=True)
    return next(w.partition("=")[2] for w in shown.stdout.split() if w.startswith("JobState="))


def job_of(run: Launch) -> SlurmJob:
    found = SlurmJob.read(run.run_dir)
    assert found is not None
    return found


def tasks(traces: Traces) -> list[int]:
    """The processes that own a host's Ray node."""
    running = traces.processes().items()
    return sorted(p for p, words in running if words.startswith(f"{sys.executable} -m {NODE}"))


@pytest.mark.full
def test_a_job_has_the_curve_of_simulated_hosts_and_leaves_nothing(
    project: Path, traces: Traces
) -> None:
    run = start(project, traces, "first", "checkpoint=null")
    run.wait_for(lambda: list(traces.temporary.glob("slipway-*/token")))
    tokens = {path.read_text() for path in traces.temporary.glob("slipway-*/token")}
    assert run.wait() == OK, run.output
    assert f"first is Slurm's job {job_of(run).job_id}, on 2 hosts" in run.output
    assert "finished 40 steps" in run.output
    wait_until(lambda: ended(job_of(run).job_id) == "COMPLETED", 30.0)
    traces.assert_nothing_left()
    simulated = start(project, traces, "simulated", "checkpoint=null", "--simulate")
    assert simulated.wait() == OK, simulated.output
    assert curve(run.run_dir) == curve(simulated.run_dir)
    assert len(curve(run.run_dir)) == 40
    files = [path for path in project.rglob("*") if path.is_file()]
    assert not [p for p in files for token in tokens if token.encode() in p.read_bytes()]


def test_the_doctor_looks_at_hosts_that_it_gets_from_the_queue(
    project: Path, traces: Traces
) -> None:
    words = ("doctor", "-c", "slurm.yaml", "-o", "json")
    looked = run_launcher(project, traces.environment, *words)
    assert looked.returncode == OK, looked.stdout + looked.stderr
    assert [one["host"] for one in json.loads(looked.stdout)["hosts"]] == [0, 1]
    assert not list(project.glob(".slipway-*"))


@pytest.mark.full
def test_a_preempted_job_saves_is_requeued_and_goes_on(project: Path, traces: Traces) -> None:
    run = start(project, traces, "moved", SAVING, "steps=300")
    run.wait_for_event("checkpoint_saved")
    other = subprocess.run(["srun", "-p", "high", "-N2", "sleep", "1"], timeout=120)
    assert other.returncode == 0
    run.wait_for(lambda: "moved is queued (" in run.output.partition("stopped")[2])
    # Slurm keeps a requeued job back for two minutes.
    begin = ["scontrol", "update", f"JobId={job_of(run).job_id}", "StartTime=now"]
    subprocess.run(begin, check=True)
    assert run.wait() == OK, run.output
    steps = [line[0] for line in curve(run.run_dir)]
    assert steps == list(range(1, 301)), "no step is done twice: it was saved in order"
    restored = [event["step"] for event in run.events() if event["event"] == "restored"]
    assert len(set(restored)) == 1, "one attempt went on from where the other one was stopped"


def test_a_run_that_is_let_go_of_is_stopped_with_a_checkpoint_and_resumed(
    project: Path, traces: Traces
) -> None:
    run = start(project, traces, "alone", SAVING, "steps=100000", "--detach")
    assert run.wait() == OK, run.output
    assert "launch attach alone" in run.output
    wait_until(lambda: any(e["event"] == "step" for e in run.events()))
    twice = run_launcher(project, traces.environment, "resume", "alone")
    assert twice.returncode == BAD_USAGE
    assert "this run is a job of Slurm's: running" in twice.stderr
    stopped = run_launcher(project, traces.environment, "stop", "alone")
    assert "alone was stopped at step" in stopped.stdout, stopped.stdout + stopped.stderr
    assert job_of(run).queue_status() is None, "it was to end, not to be requeued"
    at = json.loads((run.run_dir / "state.json").read_text())["step"]
    resumed = run_launcher(project, traces.environment, "resume", "alone", f"steps={at + 10}")
    assert resumed.returncode == OK, resumed.stdout + resumed.stderr
    assert [line[0] for line in curve(run.run_dir)] == list(range(1, at + 11))


def test_a_run_that_waits_in_the_queue_is_shown_and_can_be_taken_out(
    project: Path, traces: Traces
) -> None:
    busy = subprocess.Popen(["srun", "-p", "high", "-N2", "sleep", "600"])
    try:
        run = start(project, traces, "waiting")
        run.wait_for(lambda: "waiting is queued (" in run.output)
        status = run_launcher(project, traces.environment, "status", "waiting", "-o", "json")
        assert json.loads(status.stdout)["state"] == "queued"
        again = run_launcher(
            project, traces.environment, "-c", "slurm.yaml", "job.yaml", "name=waiting", "--fresh"
        )
        assert again.returncode == BAD_USAGE
        assert "this run is a job of Slurm's: queued (" in again.stderr
        stopped = run_launcher(project, traces.environment, "stop", "waiting")
        assert "waiting was stopped before the first step" in stopped.stdout, stopped.stderr
        assert run.wait() == INTERRUPTED, run.output
        assert "waiting was taken out of the queue" in run.output
    finally:
        busy.terminate()
        busy.wait()


def test_slurm_refusal_is_reported_and_leaves_nothing(project: Path, traces: Traces) -> None:
    cluster = project / "slurm.yaml"
    cluster.write_text(cluster.read_text().replace("low", "absent"))
    run = start(project, traces, "refused")
    assert run.wait() == NO_CLUSTER, run.output
    assert "sbatch: " in run.output
    assert "invalid partition" in run.output
    assert not run.run_dir.exists()


def test_a_secret_reaches_every_host_and_nothing_that_is_written(
    project: Path,
    traces: Traces,
    slurm_environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    secret = secrets.token_hex(16)
    monkeypatch.setenv("A_SECRET", secret)
    (project / "asks.py").write_text(ASKS_FOR_A_SECRET)
    command = {"name": "any", "command": [sys.executable, "asks.py"], "secrets": ["A_SECRET"]}
    (project / "any.yaml").write_text(json.dumps(command))
    run = Launch(project, traces, "any", ["-c", "slurm.yaml", "any.yaml"])
    run.wait_for(lambda: (run.run_dir / "waits").exists())
    slurms = Path(slurm_environment["SLURM_CONF"]).parent
    assert [path for path in written(slurms) if holds(path, secret)] == [], "of Slurm itself"
    (run.run_dir / "waits").unlink()
    assert run.wait() == OK, run.output
    printed = {path.read_text() for path in (run.run_dir / "logs").glob("host-*.log")}
    assert printed == {hashlib.sha256(secret.encode()).hexdigest() + "\n"}
    assert [path for path in written(project, slurms) if holds(path, secret)] == []
    assert secret not in run.output


def test_kill_9_of_the_launch_in_a_job_leaves_nothing(project: Path, traces: Traces) -> None:
    run = start(project, traces, "killed", SAVING, "steps=100000")
    run.wait_for_event("step")
    resuming = [p for p, command in traces.processes().items() if "launcher resume" in command]
    subprocess.run(["kill", "-9", *map(str, resuming)], check=True)
    assert run.wait() == JOB_FAILED, run.output
    assert "killed was lost at step" in run.output
    traces.assert_nothing_left()
    assert job_of(run).queue_status() is None


def test_host_failing_while_ray_starts_is_reported_and_leaves_nothing(
    project: Path, traces: Traces
) -> None:
    run = start(project, traces, "halfway")
    run.wait_for(lambda: len(tasks(traces)) == 2)
    os.kill(tasks(traces)[-1], signal.SIGKILL)
    assert run.wait() == JOB_FAILED, run.output
    assert "no Ray node started on host-000" in run.output
    assert "Killed" in run.output
    wait_until(lambda: ended(job_of(run).job_id) == "FAILED", 30.0)
