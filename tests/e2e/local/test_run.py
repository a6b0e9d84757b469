"""A whole launch, from the command to the summary: real Ray nodes, real trainers, two hosts."""

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.processes import run_launcher

pytestmark = pytest.mark.slow
JOB = """\
name: small
steps: 4
model: {layers: 1, d_model: 16, heads: 2, d_ff: 32}
data: {source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 4}
eval: {every_steps: 2, batches: 1}
sample: {tokens: 5}
"""
CLUSTER = "{accelerator: cpu, hosts: 2, devices_per_host: 1, provider: {kind: local}}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("launch")
    (folder / "job.yaml").write_text(JOB)
    (folder / "cluster.yaml").write_text(CLUSTER)
    (folder / "corpus").mkdir()
    for name in "abcdef":
        (folder / "corpus" / f"{name}.txt").write_text(f"text of {name} " * 100)
    return folder


@pytest.fixture(scope="module")
def traces() -> Iterator[Traces]:
    with Traces() as traces:
        yield traces


def launch(folder: Path, traces: Traces, *words: str) -> subprocess.CompletedProcess[str]:
    return run_launcher(folder, traces.environment, "-c", "cluster.yaml", "job.yaml", *words)


@pytest.fixture(scope="module")
def run(folder: Path, traces: Traces) -> subprocess.CompletedProcess[str]:
    return launch(folder, traces)


def test_it_ends_with_the_loss_the_folder_and_a_sample(run, folder: Path) -> None:
    assert run.returncode == 0, run.stdout + run.stderr
    assert "finished 4 steps" in run.stdout
    assert "held-out loss" in run.stdout
    assert str(folder / "runs" / "small") in run.stdout
    assert "sample" in run.stdout


def test_nothing_is_left_but_the_run(run, traces: Traces) -> None:
    traces.assert_nothing_left(timeout_s=5.0)


def test_the_run_is_on_disk(run, folder: Path) -> None:
    here = folder / "runs" / "small"
    lines = [json.loads(line) for line in (here / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    assert json.loads((here / "state.json").read_text())["state"] == "finished"
    assert sorted(path.name for path in (here / "logs").iterdir()) == [
        "host-0000.log",
        "host-0001.log",
    ]
    events = [json.loads(line) for line in (here / "events.jsonl").read_text().splitlines()]
    for process in (0, 1):
        said = [event["event"] for event in events if event.get("process") == process]
        for name in ("checked", "started", "initialized", "eval", "finished"):
            assert name in said
        assert ("step" in said, "phase" in said) == (process == 0, process == 0)
        assert "heartbeat" not in said


def test_its_model_writes_when_it_is_asked_from_any_folder(
    run, folder: Path, tmp_path: Path, traces: Traces
) -> None:
    words = ["sample", str(folder / "runs" / "small"), "--prompt", "def ", "--tokens", "5"]
    written = run_launcher(tmp_path, traces.environment, *words)
    assert written.returncode == 0, written.stderr
    assert written.stdout == (folder / "runs" / "small" / "sample.txt").read_text() + "\n"


def test_a_run_that_exists_is_not_overwritten(run, folder: Path, traces: Traces) -> None:
    again = launch(folder, traces)
    assert again.returncode == 2
    assert "--fresh" in again.stderr
    assert json.loads((folder / "runs" / "small" / "state.json").read_text())["state"] == "finished"


def test_data_that_only_the_hosts_can_see_is_checked_before_the_start(
    run, folder: Path, traces: Traces
) -> None:
    result = launch(folder, traces, "name=blind", "data.path=nothing/*.txt")
    assert result.returncode == 1
    assert "no file matches 'nothing/*.txt'" in "".join(result.stderr.splitlines()[-3:])
    events = (folder / "runs" / "blind" / "events.jsonl").read_text()
    assert '"started"' not in events
