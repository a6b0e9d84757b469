"""Runs that are stopped or killed go on: every step once, with the numbers of an unbroken run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch, Launcher
from tests.support.programs import trainer_of
from trainer.contract.records import checkpoint_metadata
from trainer.contract.records.metrics_file import curve

pytestmark = pytest.mark.slow
STEPS = 200


def save_often(launch: Launcher) -> Launcher:
    """Makes the small job one of 200 steps that saves every 20th."""
    job = launch.folder / "job.yaml"
    job.write_text(
        job.read_text().replace("steps: 100000", f"steps: {STEPS}")
        + "checkpoint: {every_steps: 20, keep: 100}\n"
    )
    return launch


@pytest.fixture
def saving(launch: Launcher) -> Launcher:
    return save_often(launch)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Launch]:
    """The same job in a run that nothing happened to."""
    with Traces() as traces:
        run = save_often(Launcher(tmp_path_factory.mktemp("unbroken"), traces))("unbroken")
        assert run.wait() == 0, run.output
        yield run


def resume(launch: Launcher, name: str, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "launcher", "resume", name, *words],
        cwd=launch.folder,
        env=launch.traces.environment,
        capture_output=True,
        text=True,
        timeout=240,
    )


def saved(run: Launch) -> list[int]:
    return checkpoint_metadata.steps(run.run_dir / "checkpoints")


def state(run: Launch) -> dict[str, Any]:
    return json.loads((run.run_dir / "state.json").read_text())


def steps(folder: Path) -> list[dict[str, Any]]:
    with (folder / "metrics.jsonl").open() as lines:
        return [line for line in curve(lines) if "loss" in line]


def assert_whole(run: Launch, unbroken: Launch) -> None:
    """Every step once, with the same examples and losses."""
    found, wanted = steps(run.run_dir), steps(unbroken.run_dir)
    assert [line["step"] for line in found] == list(range(1, STEPS + 1))
    assert [line["examples"] for line in found] == [line["examples"] for line in wanted]
    losses = [line["loss"] for line in wanted]
    assert [line["loss"] for line in found] == pytest.approx(losses, rel=1e-4)


def test_ctrl_c_saves_and_resume_goes_on_where_it_was(
    saving: Launcher, unbroken: Launch, traces: Traces
) -> None:
    run = saving("stopped")
    run.wait_for_step()
    run.process.send_signal(signal.SIGINT)
    assert run.wait(timeout_s=60.0) == 130, run.output
    (last,) = saved(run)[:1]
    assert f"checkpoint of step {last}; continue with: launch resume stopped" in run.output
    assert (state(run)["state"], state(run)["checkpoint"]) == ("interrupted", last)
    done = resume(saving, "stopped")
    assert done.returncode == 0, done.stdout + done.stderr
    assert steps(run.run_dir)[last]["attempt"] == 2
    assert_whole(run, unbroken)
    again = resume(saving, "stopped")
    assert again.returncode == 0
    assert "is complete" in again.stdout
    traces.assert_nothing_left(timeout_s=5.0)


# Faults of the launcher and resumes on other hosts are tested elsewhere, too, each by itself.
@pytest.mark.full
def test_after_kill_9_a_run_goes_on_on_another_number_of_hosts(
    saving: Launcher, unbroken: Launch, traces: Traces
) -> None:
    run = saving("killed")
    run.wait_for(lambda: saved(run))
    run.process.kill()
    run.wait()
    one_host = saving.cluster_file("one", hosts=1)
    done = resume(saving, "killed", "--cluster", str(one_host))
    assert done.returncode == 0, done.stdout + done.stderr
    assert_whole(run, unbroken)


def test_sigterm_to_one_trainer_saves_on_all(saving: Launcher, traces: Traces) -> None:
    """It counts as a preemption; this job may take none, so the run ends where it could go on."""
    run = saving("asked")
    run.wait_for_step()
    os.kill(trainer_of(traces, 1), signal.SIGTERM)
    assert run.wait(timeout_s=90.0) == 1, run.output
    assert "this launch did not ask for that (retries.preemptions: 0 is spent)" in run.reason
    assert run.reason.endswith(f"Continue from step {saved(run)[0]}: launch resume asked")
    assert state(run)["state"] == "failed"
    traces.assert_nothing_left(timeout_s=5.0)
