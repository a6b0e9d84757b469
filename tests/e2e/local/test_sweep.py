"""Sweeps with real runs: every point once, whatever is killed; and the table of their losses."""

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest

from launcher.runs.known_process import KnownProcess
from launcher.runs.state_file import RecordedState
from tests.support.json_outputs import validated
from tests.support.launches import SAME, Launcher, curve
from tests.support.processes import LAUNCH_TIMEOUT_S, run_launcher, wait_until
from tests.support.sampling import IS_FULL, sampled
from trainer.contract.records import checkpoint_metadata

pytestmark = pytest.mark.slow
STEPS = 8
JOB = f"""\
name: small
steps: {STEPS}
model: {{layers: 1, d_model: 16, heads: 2, d_ff: 32}}
data: {{source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 4}}
eval: {{every_steps: 100, batches: 2}}
sample: null
checkpoint: {{every_steps: 3}}
retries: {{standby_after_s: null}}
"""
CLUSTER = """\
accelerator: cpu
hosts: 1
devices_per_host: 1
provider: {kind: local}
"""
RATES = "optimizer.learning_rate=1e-4,1e-2"
FOUR_RATES = f"{RATES},1e-3,1e-5"


class Sweep:
    """`launch sweep` of a tiny job."""

    def __init__(self, launch: Launcher) -> None:
        self.folder, self.runs = launch.folder, launch.folder / "runs"
        (self.folder / "job.yaml").write_text(JOB)
        (self.folder / "one.yaml").write_text(CLUSTER)
        self.environment = launch.traces.environment

    def begin(self, *words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "launcher", "sweep", "-c", "one.yaml", "job.yaml"]
        return subprocess.Popen(
            [*command, *words, "-o", "json"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The output of a sweep that ends with an exit code, validated by its schema."""
        with self.begin(*words) as process:
            output, errors = process.communicate(timeout=LAUNCH_TIMEOUT_S)
        assert process.returncode == code, errors
        return validated("sweep", output)

    def steps_of(self, name: str) -> list[int]:
        return [line[SAME.index("step")] for line in curve(self.runs / name)]

    def attempts_of(self, name: str) -> int:
        return len(list((self.runs / name / "plans").iterdir()))


@pytest.fixture
def sweep(launch: Launcher) -> Sweep:
    return Sweep(launch)


@pytest.fixture
def warm_sweep(sweep: Sweep) -> Iterator[Sweep]:
    """A sweep on a cluster that stays: its points start in a few seconds."""
    up = run_launcher(sweep.folder, sweep.environment, "up", "one.yaml")
    assert up.returncode == 0, up.stderr
    yield sweep
    down = run_launcher(sweep.folder, sweep.environment, "down", "one.yaml", "--yes")
    assert down.returncode == 0, down.stderr


def test_a_sweep_compiles_each_shape_once_and_sorts_by_loss(sweep: Sweep) -> None:
    sweep.environment["XDG_CACHE_HOME"] = str(sweep.folder / "cache")
    found = sweep(RATES, "model.layers=1,2", "--jobs", "2")
    assert found["compilations"] == 2 and found["steps"] == 4 * STEPS
    losses = [point["eval_loss"] for point in found["points"]]
    assert losses == sorted(losses) and all(losses)
    best = found["points"][0]
    assert best["values"]["optimizer.learning_rate"] == 1e-2 and best["state"] == "finished"
    names = {point["name"] for point in found["points"]}
    assert names == {path.name for path in sweep.runs.glob("small-*")} and len(names) == 4
    again = sweep(RATES, "model.layers=1,2")
    assert again == found


KILLS = {str(seed): seed for seed in range(1, 6)}


@pytest.mark.parametrize("seed", sampled(KILLS, ["1"]))
def test_a_sweep_killed_at_any_moment_runs_each_point_once(sweep: Sweep, seed: int) -> None:
    """Only the command dies: the runs go on, and the next command waits for them."""
    moments = random.Random(seed)
    for _ in range(4):
        with sweep.begin(RATES, "model.layers=1,2", "--jobs", "2") as process:
            time.sleep(moments.uniform(0.5, 6.0))
            process.kill()
    found = sweep(RATES, "model.layers=1,2", "--jobs", "2")
    assert [point["state"] for point in found["points"]] == ["finished"] * 4
    for point in found["points"]:
        assert sweep.steps_of(point["name"]) == list(range(1, STEPS + 1))
        assert sweep.attempts_of(point["name"]) == 1


@pytest.mark.full
@pytest.mark.usefixtures("unhurried")
def test_a_point_whose_driver_was_killed_is_resumed(sweep: Sweep) -> None:
    run = sweep.runs / "small-learning_rate_0.01"
    with sweep.begin("optimizer.learning_rate=1e-2,1e-4", "steps=20000") as process:
        wait_until(lambda: checkpoint_metadata.steps(run / "checkpoints"), LAUNCH_TIMEOUT_S)
        process.kill()
    recorded = RecordedState.read(run)
    driver = KnownProcess.find(recorded.pid, recorded.start_time)
    assert driver
    with driver:
        driver.send(signal.SIGKILL)
        assert driver.ends_within(10)
    with sweep.begin("optimizer.learning_rate=1e-2,1e-4", "steps=20000") as process:
        wait_until(lambda: sweep.attempts_of(run.name) == 2, LAUNCH_TIMEOUT_S)
        wait_until(lambda: '"restored"' in (run / "events.jsonl").read_text(), LAUNCH_TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LAUNCH_TIMEOUT_S)
    assert process.returncode == 130
    assert "1 running point stopped with a checkpoint" in errors
    assert "Continue: launch sweep -c one.yaml job.yaml" in errors
    assert RecordedState.read(run).state == "stopped"


def test_early_stopping_finds_the_best_point_in_half_of_the_steps(warm_sweep: Sweep) -> None:
    """The schedule of a point is that of the whole job, also where it stops early.

    Without CI_FULL, two of the four points show which one is the best.
    """
    sweep = warm_sweep
    halved = sweep(FOUR_RATES, "name=halved", "--early-stop")
    assert halved["rungs"] == [2, 4, 8] and halved["steps"] == 2 + 2 + 4 + 8
    whole = sweep(FOUR_RATES if IS_FULL else RATES, "name=whole")
    best, expected = halved["points"][0], whole["points"][0]
    assert best["values"] == expected["values"]
    assert [point["state"] for point in halved["points"]] == ["finished", *["stopped early"] * 3]
    ran, wanted = (curve(sweep.runs / point["name"]) for point in (best, expected))
    assert ran == wanted


@pytest.mark.full
def test_points_that_fail_are_last_and_end_the_sweep_with_1(sweep: Sweep) -> None:
    found = sweep("optimizer.learning_rate=1e30,1e-2", "optimizer.clip_norm=null", code=1)
    assert [point["state"] for point in found["points"]] == ["finished", "failed"]
    assert "bad data or numbers" in found["points"][1]["error"]
