"""Chains of real runs: one command, whatever is killed; and runs that wait for others."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from launcher.runs.known_process import KnownProcess
from launcher.runs.state_file import RecordedState
from tests.support.launches import SAME, Launch, Launcher, curve
from tests.support.processes import LAUNCH_TIMEOUT_S, wait_until
from trainer.contract.records import checkpoint_metadata

pytestmark = pytest.mark.slow
STEPS = 8
JOB = f"""\
name: base
steps: {STEPS}
model: {{layers: 1, d_model: 16, heads: 2, d_ff: 32}}
data: {{source: text, path: "corpus/*.txt", tokenizer: bytes, seq_len: 16, global_batch: 4}}
eval: {{every_steps: 4, batches: 2}}
sample: null
checkpoint: {{every_steps: 4}}
retries: {{standby_after_s: null}}
"""
LORA = "lora: {rank: 2}\n"
FLOW = """\
name: chain
steps:
  - name: exported
    launch: [checkpoints, export, tuned, --to, out]
  - job: tune.yaml
    overrides:
      steps: %d
      eval.every_steps: 60
      checkpoint.every_steps: 20
      checkpoint.init_from: run:base@best
  - job: base.yaml
"""
CLUSTER = """\
accelerator: cpu
hosts: 1
devices_per_host: 1
provider: {kind: local}
"""
MEDIUM, LONG = 100, 200000


class Chain:
    """A folder with a flow of three steps: pretrain, LoRA, export."""

    def __init__(self, launch: Launcher) -> None:
        self._launch, self.folder, self.runs = launch, launch.folder, launch.folder / "runs"
        self.environment = launch.traces.environment
        (self.folder / "base.yaml").write_text(JOB)
        (self.folder / "tune.yaml").write_text(JOB.replace("base", "tuned") + LORA)
        (self.folder / "one.yaml").write_text(CLUSTER)
        self.write(STEPS)

    def write(self, tune_steps: int) -> None:
        (self.folder / "flow.yaml").write_text(FLOW % tune_steps)

    def begin(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "launcher", "flow", "-c", "one.yaml", "flow.yaml"]
        return subprocess.Popen(
            [*command, "-o", "json"],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(self, code: int = 0) -> tuple[dict[str, Any], str]:
        """The steps by name of a flow that ends with an exit code, and its messages."""
        with self.begin() as process:
            output, errors = process.communicate(timeout=LAUNCH_TIMEOUT_S)
        assert process.returncode == code, errors
        return {step["name"]: step for step in json.loads(output)["steps"]}, errors

    def run(self, job: str, name: str, *words: str) -> Launch:
        own = ["-c", "one.yaml", job, f"name={name}", *words]
        return Launch(self.folder, self._launch.traces, name, own)

    def resume(self, name: str) -> Launch:
        return self._launch.resume(name)

    def job_of(self, name: str) -> dict[str, Any]:
        return yaml.safe_load((self.runs / name / "job.yaml").read_text())

    def state_of(self, name: str) -> RecordedState:
        return RecordedState.read(self.runs / name)

    def attempts_of(self, name: str) -> int:
        return len(list((self.runs / name / "plans").iterdir()))

    def steps_of(self, name: str) -> list[int]:
        return sorted({line[SAME.index("step")] for line in curve(self.runs / name)})

    def kill_driver(self, name: str) -> None:
        recorded = self.state_of(name)
        driver = KnownProcess.find(recorded.pid, recorded.start_time)
        assert driver
        with driver:
            driver.send(signal.SIGKILL)
            assert driver.ends_within(10)


@pytest.fixture
def chain(launch: Launcher) -> Chain:
    return Chain(launch)


@pytest.mark.usefixtures("unhurried")
def test_a_killed_chain_goes_on_and_runs_nothing_twice(chain: Chain) -> None:
    """Pretrain, LoRA, export; the command and the supervisor of the middle run are killed."""
    chain.write(MEDIUM)
    with chain.begin() as process:
        saved = chain.runs / "tuned" / "checkpoints"
        wait_until(lambda: checkpoint_metadata.steps(saved), LAUNCH_TIMEOUT_S)
        chain.kill_driver("tuned")
        process.kill()
    assert not (chain.folder / "out").exists()
    found, _ = chain()
    assert [step["state"] for step in found.values()] == ["finished"] * 3
    assert {name: chain.attempts_of(name) for name in found} == {
        "base": 1, "tuned": 2, "exported": 1
    }  # fmt: skip
    assert '"restored"' in (chain.runs / "tuned" / "events.jsonl").read_text()
    assert chain.steps_of("base") == list(range(1, STEPS + 1))
    assert chain.steps_of("tuned") == list(range(1, MEDIUM + 1))
    best = chain.runs / "base" / "checkpoints" / str(STEPS)
    assert chain.job_of("tuned")["checkpoint"]["init_from"] == str(best)
    assert (chain.folder / "out" / "model.safetensors").exists()
    before = (chain.folder / "out" / "config.json").stat().st_mtime_ns
    again, _ = chain()
    assert again == found
    assert (chain.folder / "out" / "config.json").stat().st_mtime_ns == before
    assert chain.attempts_of("tuned") == 2


@pytest.mark.usefixtures("unhurried")
def test_ctrl_c_stops_the_running_step_of_a_flow(chain: Chain) -> None:
    (chain.folder / "base.yaml").write_text(JOB.replace(f"steps: {STEPS}", f"steps: {LONG}", 1))
    with chain.begin() as process:
        metrics = chain.runs / "base" / "metrics.jsonl"
        wait_until(metrics.exists, LAUNCH_TIMEOUT_S)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=LAUNCH_TIMEOUT_S)
    assert process.returncode == 130
    assert "1 running step stopped with a checkpoint" in errors
    assert "Continue: launch flow -c one.yaml flow.yaml" in errors
    assert chain.state_of("base").state == "stopped"
    assert not (chain.runs / "tuned").exists()


@pytest.mark.full
def test_a_chain_of_three_steps_exports_the_tuned_model(chain: Chain) -> None:
    found, _ = chain()
    assert {name: step["state"] for name, step in found.items()} == dict.fromkeys(
        ["base", "tuned", "exported"], "finished"
    )
    assert (chain.folder / "out" / "model.safetensors").exists()
    before = (chain.folder / "out" / "config.json").stat().st_mtime_ns
    again, _ = chain()
    assert again == found
    assert (chain.folder / "out" / "config.json").stat().st_mtime_ns == before
    assert all(chain.attempts_of(name) == 1 for name in found)


def test_a_failed_first_run_cancels_the_rest(chain: Chain) -> None:
    job = JOB + "optimizer: {learning_rate: 1e30, clip_norm: null}\n"
    (chain.folder / "base.yaml").write_text(job)
    found, errors = chain(code=1)
    states = {name: step["state"] for name, step in found.items()}
    assert states == {"base": "failed", "tuned": "cancelled", "exported": "cancelled"}
    assert "base did not finish; 2 steps cancelled" in errors
    assert "bad data or numbers" in errors and "launch logs base" in errors
    assert not (chain.runs / "tuned").exists() and not (chain.runs / "exported").exists()


def test_a_run_waits_for_another_and_starts_from_its_best(chain: Chain) -> None:
    """It is killed while it waits, and waits again after `launch resume`."""
    base = chain.run("base.yaml", "base")
    wait_until(lambda: (chain.runs / "base" / "state.json").exists(), LAUNCH_TIMEOUT_S)
    after = ["after=[base]", "checkpoint.init_from=run:base@best"]
    tuned = chain.run("tune.yaml", "tuned", *after)
    tuned.wait_for(lambda: "waiting for base, which is" in tuned.output)
    tuned.process.kill()
    tuned.wait()
    assert chain.job_of("tuned")["after"] == ["base"]
    again = chain.resume("tuned")
    assert base.wait() == 0 and again.wait() == 0, again.output
    assert chain.job_of("tuned")["after"] == []
    folder = str(chain.runs / "base" / "checkpoints" / str(STEPS))
    assert chain.job_of("tuned")["checkpoint"]["init_from"] == folder
    assert chain.steps_of("tuned") == list(range(1, STEPS + 1))


@pytest.mark.usefixtures("unhurried")
def test_a_wait_for_another_run_ends_by_ctrl_c_and_when_it_is_stopped(chain: Chain) -> None:
    base = chain.run("base.yaml", "base", f"steps={LONG}")
    wait_until(lambda: (chain.runs / "base" / "state.json").exists(), LAUNCH_TIMEOUT_S)
    interrupted = chain.run("base.yaml", "interrupted", "after=[base]")
    tuned = chain.run("base.yaml", "tuned", "after=[base]")
    for waiting in (interrupted, tuned):
        waiting.wait_for_event("state", state="waiting_for_runs")
    interrupted.process.send_signal(signal.SIGINT)
    assert interrupted.wait() == 130
    assert chain.state_of("interrupted").state == "interrupted"
    base.process.send_signal(signal.SIGTERM)
    assert base.wait() == 130
    assert tuned.wait() == 1
    assert "cancelled: base was stopped" in tuned.output
    assert "Try again: launch resume tuned" in tuned.output
    assert chain.state_of("tuned").state == "cancelled"


def test_damaged_weights_of_another_run_are_refused(chain: Chain) -> None:
    assert chain.run("base.yaml", "base").wait() == 0
    damage(chain.runs / "base" / "checkpoints" / str(STEPS))
    tuned = chain.run("tune.yaml", "tuned", "checkpoint.init_from=run:base@best")
    assert tuned.wait() == 1
    assert "init_from: " in tuned.output, tuned.output


def damage(checkpoint: Path) -> None:
    """Changes a byte of every KiB of arrays: which file has the weights varies with each save."""
    for path in checkpoint.glob("ocdbt.process_0/d/*"):
        data = bytearray(path.read_bytes())
        for place in range(512, len(data), 1024):
            data[place] ^= 0xFF
        path.write_bytes(data)
