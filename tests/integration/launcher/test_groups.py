"""Groups of runs: one command at a time, and no run of another job."""

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.commands.groups.earlier_job import changes
from launcher.commands.groups.group import only_command
from launcher.core.errors import UsageError
from launcher.planning.spec import LaunchSpec
from launcher.runs.directory import RunDir
from tests.support.launch_plans import small_launch
from trainer.contract.config.checkpoint import Checkpoint


def test_two_commands_cannot_run_one_group(tmp_path: Path) -> None:
    with ExitStack() as first:
        first.enter_context(only_command(tmp_path, "rates", "sweep"))
        with ExitStack() as second, pytest.raises(UsageError, match="runs this sweep now"):
            second.enter_context(only_command(tmp_path, "rates", "sweep"))
        with only_command(tmp_path, "rates", "flow"):
            pass
    with only_command(tmp_path, "rates", "sweep"):
        pass


@pytest.fixture
def started(tmp_path: Path) -> LaunchSpec:
    """A run of the small job, which starts from a checkpoint folder."""
    spec = changed(small_launch(tmp_path), "/runs/base/checkpoints/3")
    RunDir.create(spec).close()
    return spec


def changed(spec: LaunchSpec, init_from: str, **keys: object) -> LaunchSpec:
    checkpoint = Checkpoint.model_validate({"init_from": init_from})
    return replace(spec, job=spec.job.model_copy(update={"checkpoint": checkpoint, **keys}))


def test_a_run_of_another_job_differs_by_its_keys(started: LaunchSpec) -> None:
    assert changes(started) == []
    other = changed(started, "/runs/base/checkpoints/4", steps=3)
    assert changes(other) == [
        "steps: 2 -> 3",
        'checkpoint.init_from: "/runs/base/checkpoints/3" -> "/runs/base/checkpoints/4"',
    ]


def test_what_a_run_changes_itself_is_no_difference(started: LaunchSpec) -> None:
    own = changed(started, "run:base@best", after=("base",), stop_after_step=1)
    assert changes(own) == []
