"""`launch init`: a job file to begin with."""

import resource
from pathlib import Path

import pytest

from launcher.commands.init import write_job
from launcher.core.errors import UsageError
from tests.support.cli import launch
from trainer.contract.config.command import load_job
from trainer.contract.config.job import Job


def test_the_written_file_is_a_job_that_is_planned_as_it_is(tmp_path: Path) -> None:
    written = launch(tmp_path, "init")
    assert (written.returncode, written.stdout) == (
        0,
        "wrote job.yaml. Run it with: launch job.yaml\n",
    )
    planned = launch(tmp_path, "plan", "job.yaml")
    assert planned.returncode == 0, planned.stderr
    assert planned.stdout.startswith("job on local: ")


def test_the_job_is_named_after_its_file(tmp_path: Path) -> None:
    assert launch(tmp_path, "init", "my job_2.yaml").returncode == 0
    assert load_job(tmp_path / "my job_2.yaml").value.name == "my-job-2"


def test_a_file_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: mine\n")
    refused = launch(tmp_path, "init")
    assert refused.returncode == 2
    assert refused.stderr == "job.yaml exists already: name another file, or delete it first\n"
    assert (tmp_path / "job.yaml").read_text() == "name: mine\n"


def test_a_folder_that_is_missing_is_reported(tmp_path: Path) -> None:
    refused = launch(tmp_path, "init", "no/job.yaml")
    assert refused.returncode == 2
    assert refused.stderr == "no/job.yaml cannot be written: No such file or directory\n"


@pytest.mark.parametrize("name", ["two\nlines.yaml", b"\xff.yaml".decode(errors="surrogateescape")])
def test_a_job_may_have_a_file_of_any_name(tmp_path: Path, name: str) -> None:
    assert launch(tmp_path, "init", name).returncode == 0
    assert isinstance(load_job(tmp_path / name).value, Job)


def test_a_file_that_cannot_be_filled_is_not_left(tmp_path: Path) -> None:
    """A limit of the size of files plays a full disk."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        with pytest.raises(UsageError, match=r"job.yaml cannot be written: File too large"):
            write_job(tmp_path / "job.yaml")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list(tmp_path.iterdir())
