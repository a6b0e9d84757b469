"""A job that does not fit the memory of its hosts is refused before anything starts."""

import json
from pathlib import Path

import pytest

from tests.support.cli import launch
from tests.support.launch_plans import JOB

CLUSTER = """\
accelerator: v5e-16
host_memory_gib: {gib}
provider: {{kind: ssh, hosts: [a, b, c, d]}}
"""
SLOTS = "checkpoint: {every_steps: 10, in_memory_every_steps: 1}\n"
LARGE = ("model.d_model=2048", "model.d_ff=8192", "model.layers=16", "data.global_batch=16")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB + SLOTS)
    return tmp_path


def refused(folder: Path, *verb: str, gib: float) -> tuple[int, str]:
    (folder / "hosts.yaml").write_text(CLUSTER.format(gib=gib))
    ended = launch(folder, *verb, "job.yaml", "--cluster", "hosts.yaml", *LARGE, "-o", "json")
    return ended.returncode, ended.stderr


def test_a_plan_beyond_the_memory_of_hosts_names_the_part(folder: Path) -> None:
    code, error = refused(folder, "plan", gib=16)
    (problem,) = json.loads(error)["problems"]
    assert code == 2
    assert problem["key"] == "checkpoint.in_memory_every_steps"
    assert problem["line"] == 5
    assert "each host needs about" in problem["message"]
    assert "to save (in-memory checkpoints" in problem["message"]
    assert "but it has 16 GiB. Set it to null" in problem["message"]


def test_a_launch_beyond_the_memory_of_hosts_starts_nothing(folder: Path) -> None:
    code, _ = refused(folder, "run", "--runs", "runs", gib=16)
    assert code == 2
    assert not (folder / "runs").exists()


def test_the_same_plan_fits_larger_hosts(folder: Path) -> None:
    code, error = refused(folder, "plan", gib=200)
    assert code == 0, error
