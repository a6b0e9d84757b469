"""A model of the user's own through `launch`: planned, trained on two hosts, resumed on one."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.processes import run_launcher

MODEL = Path(__file__).parents[3] / "jobs" / "own_model.py"
JOB = """\
name: own
steps: 4
model: {module: mine.model:build, args: {width: 8, hidden: 16}}
data: {source: stdlib, seq_len: 16, global_batch: 4}
optimizer: {schedule: constant, learning_rate: 0.03}
eval: {every_steps: 4, batches: 1, multiple_choice: {path: questions.jsonl}}
checkpoint: {every_steps: 2}
"""
QUESTIONS = [
    {"question": "import", "choices": ["os", "3"], "answer": 0},
    {"question": "for i", "choices": ["in", "or", "if"], "answer": 0},
    {"question": "x =", "choices": ["1", ")"], "answer": 1},
]
CLUSTER = "{accelerator: cpu, hosts: %d, devices_per_host: 1, provider: {kind: local}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own")
    (folder / "mine").mkdir()
    (folder / "mine" / "model.py").write_text(MODEL.read_text())
    (folder / "job.yaml").write_text(JOB)
    (folder / "questions.jsonl").write_text("\n".join(map(json.dumps, QUESTIONS)))
    for hosts in (1, 2):
        (folder / f"hosts-{hosts}.yaml").write_text(CLUSTER % hosts)
    return folder


@pytest.fixture(scope="module")
def traces() -> Iterator[Traces]:
    with Traces() as traces:
        yield traces


def test_its_memory_is_planned(folder: Path, traces: Traces) -> None:
    words = ["plan", "-c", "hosts-2.yaml", "job.yaml", "-o", "json"]
    shown = run_launcher(folder, traces.environment, *words)
    assert shown.returncode == 0, shown.stderr
    arrays = {one["name"]: one for one in json.loads(shown.stdout)["arrays"]}
    assert arrays["up"]["spec"] == [None, "fsdp", None]
    assert arrays["up"]["bytes_per_device"] == 4 * 8 * 16 * 4 / 2


def test_wrong_custom_model_is_reported_with_both_lines(folder: Path, traces: Traces) -> None:
    (folder / "mine" / "broken.py").write_text("import jax\n\nraise OSError('no such table')\n")
    words = ["-c", "hosts-2.yaml", "job.yaml", "model.module=mine.broken:build"]
    refused = run_launcher(folder, traces.environment, *words)
    assert refused.returncode == 2
    assert "mine/broken.py:3 in <module>: OSError: no such table" in refused.stderr
    assert "override model.module=mine.broken:build" in refused.stderr
    assert not (folder / "runs" / "own").exists()


@pytest.mark.full
@pytest.mark.slow
def test_it_trains_on_two_hosts_and_goes_on_with_one(folder: Path, traces: Traces) -> None:
    trained = run_launcher(folder, traces.environment, "-c", "hosts-2.yaml", "job.yaml")
    assert trained.returncode == 0, trained.stdout + trained.stderr
    other = ["resume", "own", "-c", "hosts-1.yaml", "steps=6"]
    refused = run_launcher(folder, traces.environment, *other, "model.args.hidden=32")
    assert refused.returncode == 2
    assert "the weights of step 4 belong to another model" in refused.stderr
    resumed = run_launcher(folder, traces.environment, *other)
    assert resumed.returncode == 0, resumed.stdout + resumed.stderr
    by_hand = [sys.executable, "-m", "trainer", "job.yaml"]
    for words in (["name=whole", "steps=6"], ["name=more", "checkpoint.init_from=runs/own"]):
        subprocess.run([*by_hand, *words], cwd=folder, env=traces.environment, check=True)
    assert told(folder, "own", "loss") == pytest.approx(told(folder, "whole", "loss"), rel=1e-4)
    assert told(folder, "own", "accuracy") == told(folder, "whole", "accuracy") != []
    assert told(folder, "more", "loss")[0] < told(folder, "own", "loss")[0] - 0.1
    for command in (
        ["sample", "own", "--prompt", "a"],
        ["checkpoints", "export", "own", "--to", "exported"],
    ):
        refused = run_launcher(folder, traces.environment, *command)
        assert (refused.returncode, "model.module" in refused.stderr) == (2, True), refused.stderr


def told(folder: Path, name: str, key: str) -> list[float]:
    lines = (folder / "runs" / name / "metrics.jsonl").read_text().splitlines()
    return [line[key] for line in map(json.loads, lines) if key in line]
