"""Exit codes and last words of `launch run`, by what the attempts ended with."""

from pathlib import Path

import pytest
from rich.console import Console

from launcher.controller.controller import RunController
from launcher.controller.supervisor import RunEnded
from launcher.core.errors import HostError
from launcher.core.states import RunState
from launcher.executors.drive import drive
from launcher.gang.agent_calls import GangError
from launcher.runs.directory import RunDir
from launcher.ui.progress import LastCheckpoint
from tests.support.exits import exit_code
from tests.support.launch_plans import small_launch

WAY_ON = "Continue from step 40: launch resume small"


def end_of(folder: Path, end: Exception | RunEnded, monkeypatch: pytest.MonkeyPatch) -> int:
    """The exit code of a run with a checkpoint of step 40 whose attempts end like that."""

    def run(attempts: RunController) -> RunEnded:
        if isinstance(end, Exception):
            raise end
        return end

    monkeypatch.chdir(folder)
    monkeypatch.setattr(RunController, "run", run)
    launch = small_launch(folder)
    with RunDir.create(launch) as made:
        saved, console = LastCheckpoint(40, None), Console(stderr=True)
        return exit_code(lambda: drive(launch, made, saved, console))


def test_a_lost_cluster_ends_with_3_and_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lost = HostError("the head of the Ray cluster has ended")
    assert end_of(tmp_path, lost, monkeypatch) == 3
    assert WAY_ON in capsys.readouterr().err


def test_hosts_unfit_for_first_attempt_exit_1_with_next_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    unfit = GangError("the hosts differ: versions.jax differs")
    assert end_of(tmp_path, unfit, monkeypatch) == 1
    assert WAY_ON in capsys.readouterr().err


def test_a_run_that_failed_ends_with_1_and_the_way_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    over = RunEnded(RunState.FAILED, "host-0001 was lost (21 attempts without a new checkpoint)")
    assert end_of(tmp_path, over, monkeypatch) == 1
    assert WAY_ON in capsys.readouterr().err
