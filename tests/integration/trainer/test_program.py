"""`python -m trainer`, by hand and as the launcher starts it, on one host."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import gang
from tests.support.jobs import job_of, world_of
from trainer.contract.config.loader import dump
from trainer.contract.protocol import versions

DEADLINE_S = 200
ROOT = Path(__file__).parents[3]


def _by_hand(folder, *arguments, **changes):
    """The program as a user starts it: no variable of the launcher is set."""
    (folder / "job.yaml").write_text(dump(job_of(**changes)), encoding="utf-8")
    return _program([*arguments, str(folder / "job.yaml")], {}, folder)


def _program(arguments, variables, cwd=None):
    clean = {name: value for name, value in os.environ.items() if "SLIPWAY" not in name}
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "trainer", *arguments],
        env={**clean, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu", **variables}, cwd=cwd,
        capture_output=True, text=True, timeout=DEADLINE_S, check=False,
        pass_fds=[int(fd) for fd in [variables.get("SLIPWAY_EVENTS_FD")] if fd],
    )  # fmt: skip


@pytest.mark.slow
def test_by_hand_it_trains_on_this_machine_and_says_how_it_goes(tmp_path):
    ended = _by_hand(
        tmp_path,
        steps=4,
        eval={"every_steps": 2, "batches": 2},
        sample={"prompt": "def ", "tokens": 20, "every_steps": 2},
    )
    assert ended.returncode == 0, ended.stderr
    assert "step 1/4  loss 5." in ended.stdout and "step 4/4" in ended.stdout
    run = tmp_path / "runs" / job_of().name
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines if "loss" in line] == [1, 2, 3, 4]
    assert [line["step"] for line in lines if "eval_loss" in line] == [2, 4]
    assert {
        "loss", "grad_norm", "learning_rate", "tokens", "step_time_s", "tokens_per_s", "mfu",
        "data_wait_s", "epoch", "attempt", "examples",
    } <= set(lines[0])  # fmt: skip
    assert (run / "sample.txt").read_text().startswith("def ")
    (sampled,) = map(json.loads, (run / "samples.jsonl").read_text().splitlines())
    assert sampled["step"] == 2 and sampled["text"].startswith("def ")
    again = _by_hand(tmp_path)
    assert again.returncode == 64 and "already exists. Choose another name" in again.stderr


@pytest.mark.slow
def test_numbers_that_are_not_finite_stop_the_run_with_the_step_named(tmp_path):
    ended = _by_hand(tmp_path, steps=6, optimizer={"learning_rate": 1e30, "clip_norm": None})
    assert ended.returncode == 65
    assert "step 2" in ended.stderr and "not finite" in ended.stderr
    lines = (tmp_path / "runs" / job_of().name / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1]


def test_a_wrong_job_file_is_64(tmp_path):
    (tmp_path / "job.yaml").write_text("name: x\nstepps: 3\n")
    ended = _program([str(tmp_path / "job.yaml")], {})
    assert ended.returncode == 64
    assert "stepps: unknown key" in ended.stderr


def test_a_job_that_does_not_fit_this_machine_is_64(tmp_path):
    ended = _by_hand(tmp_path, mesh={"fsdp": 3})
    assert ended.returncode == 64
    assert "mesh" in ended.stderr


def test_data_that_is_not_there_is_65(tmp_path):
    ended = _by_hand(tmp_path, data={"source": "text", "path": str(tmp_path / "none-*.txt")})
    assert ended.returncode == 65
    assert "no file matches" in ended.stderr


@pytest.fixture
def events():
    reader, writer = os.pipe()

    def read():
        os.close(writer)
        with os.fdopen(reader, encoding="utf-8") as pipe:
            return [json.loads(line) for line in pipe]

    return writer, read


def test_the_check_says_what_hosts_must_agree_on(tmp_path, events):
    writer, read = events
    (tmp_path / "job.yaml").write_text(dump(job_of()), encoding="utf-8")
    variables = {"SLIPWAY_EVENTS_FD": str(writer)}
    ended = _program(["--check", str(tmp_path / "job.yaml")], variables)
    assert ended.returncode == 0, ended.stderr
    (checked,) = [event for event in read() if event["event"] == "checked"]
    assert {"python", "jax", "jaxlib", "flax"} <= set(checked["versions"])
    assert len(checked["code"]) == len(checked["corpus_sha256"]) == 64
    assert checked["tokens"] > 1_000_000
    assert checked["sequences"] == (checked["tokens"] - 1) // 32


def test_several_processes_need_the_address_of_a_coordinator(tmp_path):
    world = world_of(2, 1)
    port = gang.write(job_of(), world, tmp_path)
    variables = gang.environment(world, tmp_path, 0, port) | {"JAX_COORDINATOR_ADDRESS": ""}
    ended = _program([str(tmp_path / "job.yaml")], variables)
    assert ended.returncode == 64, ended.stderr
    expected = "SLIPWAY_NUM_PROCESSES is 2, but JAX_COORDINATOR_ADDRESS is not set"
    assert expected in ended.stderr


def test_a_plugin_of_jax_that_is_installed_is_among_the_versions(tmp_path, monkeypatch):
    about = tmp_path / "libtpu-9.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: libtpu\nVersion: 9.9\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert versions.versions.__wrapped__()["libtpu"] == "9.9"


def test_the_check_names_data_that_cannot_serve_the_job(tmp_path, events):
    writer, read = events
    (tmp_path / "short.txt").write_text("short")
    job = job_of(data={"source": "text", "path": str(tmp_path / "*.txt")})
    (tmp_path / "job.yaml").write_text(dump(job), encoding="utf-8")
    variables = {"SLIPWAY_EVENTS_FD": str(writer)}
    ended = _program(["--check", str(tmp_path / "job.yaml")], variables)
    assert ended.returncode == 65
    (error,) = [event for event in read() if event["event"] == "error"]
    assert "a sequence needs 33" in error["message"]


def test_the_check_imports_no_jax():
    script = (
        "import sys, trainer.__main__; print([m for m in ('jax', 'grain') if m in sys.modules])"
    )
    command = [sys.executable, "-c", script]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.strip() == "[]"


def test_a_world_that_is_not_the_planned_one_is_refused(tmp_path):
    ended = gang.run(job_of(), world_of(1, 4), tmp_path, devices=2)
    assert ended.codes == [1]
    assert "2 devices, planned 4" in ended.outputs[0]


def test_taken_coordinator_port_is_reported_for_retry_on_another(tmp_path, events):
    writer, read = events
    world = world_of(2, 1)
    gang.write(job_of(), world, tmp_path)
    with socket.create_server(("", 0)) as taken:
        variables = gang.environment(world, tmp_path, 0, taken.getsockname()[1])
        variables["SLIPWAY_EVENTS_FD"] = str(writer)
        ended = _program([str(tmp_path / "job.yaml")], variables)
    assert ended.returncode == 1
    kinds = [event["category"] for event in read() if event["event"] == "warning"]
    assert kinds == ["port_taken"]
