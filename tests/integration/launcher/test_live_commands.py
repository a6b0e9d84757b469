"""The commands that ask something of a live run: their errors for any other run."""

from pathlib import Path

import pytest

from launcher.core.states import RunState
from tests.support.cli import launch
from tests.support.run_folders import make_run

COMMANDS = [["stacks", "small"], ["exec", "small", "--", "true"], ["profile", "small"]]


@pytest.mark.parametrize("command", COMMANDS)
def test_run_that_has_ended_is_an_error(tmp_path: Path, command: list[str]) -> None:
    with make_run(tmp_path) as run:
        run.set_state(RunState.FINISHED)
    done = launch(tmp_path, *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "not running: small finished" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_run_without_programs_is_an_error(tmp_path: Path, command: list[str]) -> None:
    with make_run(tmp_path):
        done = launch(tmp_path, *command)
    assert (done.returncode, done.stdout) == (2, "")
    assert "small runs no programs now: its state is provisioning" in done.stderr


@pytest.mark.parametrize("command", COMMANDS)
def test_unknown_run_is_an_error(tmp_path: Path, command: list[str]) -> None:
    done = launch(tmp_path, command[0], "absent", *command[2:])
    assert (done.returncode, done.stdout) == (2, "")
    assert "absent: no run of this name" in done.stderr


@pytest.mark.parametrize(
    "words", [["exec", "small"], ["exec", "small", "--host", "x", "--", "true"]]
)
def test_command_line_that_is_incomplete_is_an_error(tmp_path: Path, words: list[str]) -> None:
    assert launch(tmp_path, *words).returncode == 2
