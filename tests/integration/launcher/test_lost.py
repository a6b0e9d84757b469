"""A lost run is notified once, by whichever command finds it first."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.states import RunState
from launcher.runs.directory import RunDir
from tests.support.cli import launch
from tests.support.launch_plans import small_launch
from tests.support.notices import outcomes
from tests.support.webhooks import Webhooks, webhook_server
from trainer.contract.config.notify import AnyTarget, UrlTarget


@pytest.fixture
def hooks() -> Iterator[Webhooks]:
    with webhook_server() as hooks:
        yield hooks


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


def run_in(folder: Path, *targets: AnyTarget, state: RunState = RunState.RUNNING) -> Path:
    """Makes a run with these targets that no process runs."""
    spec = small_launch(folder)
    job = spec.job.model_copy(update={"notify": targets or None})
    with RunDir.create(replace(spec, job=job)) as run:
        run.set_state(state)
    return run.folder


@pytest.mark.parametrize("command", ["list", "status"])
def test_a_command_that_finds_a_lost_run_notifies_it_once(
    hooks: Webhooks, tmp_path: Path, command: str
) -> None:
    folder = run_in(tmp_path, UrlTarget(url=hooks.url))
    arguments = [command] if command == "list" else [command, "small"]
    for _ in range(2):
        assert launch(tmp_path, *arguments).returncode == 0
    assert hooks.events() == ["lost"]
    assert "continue with: launch resume" in hooks.delivered[0].json["message"]
    assert outcomes(folder) == [("lost", "sent")]


def test_commands_that_find_it_at_the_same_time_notify_it_once(
    hooks: Webhooks, tmp_path: Path
) -> None:
    run_in(tmp_path, UrlTarget(url=hooks.url))
    command = [sys.executable, "-m", "launcher", "list"]
    found = [subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL) for _ in range(4)]
    assert [process.wait(60) for process in found] == [0] * 4
    assert hooks.events() == ["lost"]


def test_targets_of_the_configuration_file_are_notified(hooks: Webhooks, tmp_path: Path) -> None:
    path = tmp_path / "config" / "slipway" / "config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(f"notify:\n  - url: {hooks.url}\n")
    run_in(tmp_path)
    launch(tmp_path, "list")
    assert hooks.events() == ["lost"]


@pytest.mark.parametrize("state", [RunState.FINISHED, RunState.STOPPED, RunState.OVER_BUDGET])
def test_a_run_that_ended_in_order_is_not_lost(
    hooks: Webhooks, tmp_path: Path, state: RunState
) -> None:
    run_in(tmp_path, UrlTarget(url=hooks.url), state=state)
    launch(tmp_path, "list")
    assert hooks.received == []


def test_a_run_that_another_user_has_started_is_not_notified(
    hooks: Webhooks, tmp_path: Path
) -> None:
    run_in(tmp_path, UrlTarget(url=hooks.url))
    environment = {"XDG_STATE_HOME": str(tmp_path / "state of another user")}
    assert "lost" in launch(tmp_path, "list", environment=environment).stdout
    assert hooks.received == []


def test_a_server_that_hangs_delays_a_list_for_some_seconds_once(
    hooks: Webhooks, tmp_path: Path
) -> None:
    hooks.hangs = True
    folder = run_in(tmp_path, UrlTarget(url=hooks.url))
    assert "lost" in launch(tmp_path, "list").stdout
    assert outcomes(folder) == [("lost", "given_up")]
    launch(tmp_path, "list")
    assert outcomes(folder) == [("lost", "given_up")]


def test_a_damaged_configuration_file_does_not_fail_a_list(tmp_path: Path) -> None:
    path = tmp_path / "config" / "slipway" / "config.yaml"
    path.parent.mkdir(parents=True)
    run_in(tmp_path)
    path.write_text("notify: [{}]")
    assert launch(tmp_path, "list").returncode == 0
