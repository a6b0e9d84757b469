"""What commands print with `-o json` about real runs is valid by their schemas."""

from typing import Any

import pytest

from tests.support.json_outputs import validated, validated_error
from tests.support.launches import Launcher
from tests.support.processes import run_launcher

pytestmark = pytest.mark.slow
JOB = """\
name: small
steps: 4
model: {layers: 1, d_model: 16, heads: 2, d_ff: 32}
data: {source: text, path: "corpus/*.txt", seq_len: 16, global_batch: 4}
eval: {every_steps: 100, batches: 2}
sample: null
retries: {standby_after_s: null}
"""
CLUSTER = "{accelerator: cpu, hosts: 1, devices_per_host: 1, provider: {kind: local}}"


@pytest.fixture
def launched(launch: Launcher, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command with `-o json`."""
    (launch.folder / "job.yaml").write_text(JOB)
    (launch.folder / "one.yaml").write_text(CLUSTER)

    def run(*words: str) -> Any:
        environment = launch.traces.environment
        return run_launcher(launch.folder, environment, *words, "-o", "json")

    return run


def test_outputs_of_a_run_and_its_checkpoint(launch: Launcher, launched: Any) -> None:
    def printed(name: str, *words: str) -> Any:
        ended = launched(*name.split(), *words)
        assert ended.returncode == 0, ended.stderr
        return validated(name, ended.stdout)

    assert printed("run", "-c", "one.yaml", "job.yaml")["step"] == 4
    assert printed("resume", "small", "steps=5")["attempt"] == 2
    assert [one["step"] for one in printed("checkpoints list", "small", "--verify")] == [5, 4]
    exported = printed("checkpoints export", "small", "--to", "weights", "--step", "4")
    assert (exported["step"], exported["folder"]) == (4, "weights")
    assert "small, step 4" in (launch.folder / "weights" / "README.md").read_text()
    assert printed("audit", "small", "--steps", "5")["kind"] == "equal"
    sampled = printed("sample", "small", "--prompt", "one ", "--tokens", "3")
    assert sampled["text"].startswith("one ")
    assert {event["event"] for event in printed("events", "small")} > {"step", "state"}
    assert printed("report", "small")["runs"] == ["small"]


@pytest.mark.usefixtures("unhurried")
def test_outputs_about_a_live_run(launch: Launcher, launched: Any) -> None:
    run = launch.on(launch.folder / "one.yaml", "live", ["steps=100000", "log_every=1"])
    run.wait_for_step()
    (group,) = validated("stacks", launched("stacks", "live").stdout)["groups"]
    assert group["processes"] == [0]
    assert group["frames"]
    *output, ended = validated("exec", launched("exec", "live", "printf", "ä\\na").stdout)
    assert "".join(line["stdout"] for line in output) == "ä\na"
    assert ended == {"host": 0, "exit_code": 0}
    assert validated("profile", launched("profile", "live", "--steps", "1").stdout)["files"]
    assert validated("why", launched("why", "live").stdout)["alive"]
    assert "stacks.json" in validated("debug", launched("debug", "live").stdout)["files"]
    run.process.terminate()
    run.wait()


def test_error_of_a_failed_run(launched: Any) -> None:
    failed = launched("run", "-c", "one.yaml", "job.yaml", "name=bad", "data.path=absent/*.txt")
    assert failed.returncode
    assert validated_error(failed.stderr)["exit_code"] == failed.returncode


def test_outputs_of_a_flow(launched: Any, launch: Launcher) -> None:
    flow = "name: chain\nsteps:\n  - job: job.yaml\n    name: first\n"
    (launch.folder / "flow.yaml").write_text(flow)
    found = validated("flow", launched("flow", "-c", "one.yaml", "flow.yaml").stdout)
    assert [(step["name"], step["state"]) for step in found["steps"]] == [("first", "finished")]


def test_outputs_about_a_cluster(launched: Any) -> None:
    examined = validated("doctor", launched("doctor", "-c", "one.yaml").stdout)
    assert [one["host"] for one in examined["hosts"]] == [0]
    up = validated("up", launched("up", "one.yaml").stdout)
    assert (up["hosts"], up["started"]) == (1, True)
    again = validated("up", launched("up", "one.yaml").stdout)
    assert again["started"] is False
    down = validated("down", launched("down", "one.yaml").stdout)
    assert [one["name"] for one in down["ended"]] == ["one"]
