"""`launch plan --compile --keep`: what it refuses, and what a run takes along of what it kept."""

from dataclasses import replace
from pathlib import Path

import pytest

from launcher import api
from launcher.planning.spec import LaunchSpec
from launcher.runs.directory import RunDir
from tests.support.cli import JOB, launch
from tests.support.launch_plans import COMMAND_JOB
from trainer.contract.config.loader import ConfigError

KEEP = ["--compile", "--keep"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "job.yaml").write_text(JOB)
    (tmp_path / "command.yaml").write_text(COMMAND_JOB)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["job.yaml", "--keep"], "--keep: keeps what --compile compiles. Add --compile"),
        (["job.yaml", *KEEP, "--search"], "--keep and --search: one of them at a time"),
        (["job.yaml", *KEEP, "--draw", "embed"], "--keep and --draw: one of them at a time"),
        (["job.yaml", "-c", "v4-8", *KEEP], "--keep: v4-8: libtpu compiles for a description"),
        (["job.yaml", "-c", "h100-8", *KEEP], "--keep: h100-8: only CPU devices can be compiled"),
        (["command.yaml", *KEEP], "--keep: a job with a `command` cannot be analyzed"),
    ],
)
def test_what_cannot_be_kept_is_refused(folder: Path, words: list[str], message: str) -> None:
    refused = launch(folder, "plan", *words)
    assert refused.returncode == 2
    assert message in refused.stderr
    assert not (folder / "runs").exists()


def test_a_store_that_cannot_be_written_is_refused(folder: Path) -> None:
    (folder / "file").touch()
    refused = launch(folder, "plan", "job.yaml", *KEEP, "--runs", "file/runs")
    assert refused.returncode == 2
    store = folder / "file/runs/.programs/tiny"
    assert f"--keep: {store} cannot be written: Not a directory. Say --runs" in refused.stderr


@pytest.mark.slow
def test_what_was_kept_before_stays_when_nothing_can_be_compiled(folder: Path) -> None:
    (kept := store(folder)).mkdir(parents=True)
    (kept / "0001-0000.bundle").touch()
    limit = {"SLIPWAY_PROGRAMS_BYTES": "0"}
    refused = launch(folder, "plan", "job.yaml", *KEEP, environment=limit)
    assert refused.returncode == 2
    assert "--keep: process 0 of 1: exit code 1: SLIPWAY_PROGRAMS_BYTES=0" in refused.stderr
    assert [path.name for path in kept.parent.rglob("*")] == ["tiny", "0001-0000.bundle"]


def store(folder: Path) -> Path:
    return folder / "runs" / ".programs" / "tiny"


def planned(folder: Path) -> LaunchSpec:
    return api.plan(folder / "job.yaml", runs=folder / "runs")


def test_a_run_takes_its_programs_along_until_an_attempt_without(folder: Path) -> None:
    (kept := store(folder)).mkdir(parents=True)
    (kept / "0001-0000.bundle").write_bytes(b"program")
    with RunDir.create(planned(folder)) as run:
        brought = run.folder / "programs" / "0001-0000.bundle"
        assert brought.read_bytes() == b"program"
    with pytest.raises(ConfigError, match="steps"):
        api.resume(run.folder, overrides=["steps=none"], hot=False)
    assert brought.exists()
    with RunDir.open(run.folder) as run:
        run.begin(replace(planned(folder), hot=False))
    assert not brought.parent.exists()
    assert (kept / "0001-0000.bundle").exists()


def test_a_run_without_hot_start_or_kept_programs_takes_none(folder: Path) -> None:
    with RunDir.create(planned(folder)) as run:
        assert not (run.folder / "programs").exists()
    store(folder).mkdir(parents=True)
    with RunDir.create(replace(planned(folder), hot=False), fresh=True) as run:
        assert not (run.folder / "programs").exists()
