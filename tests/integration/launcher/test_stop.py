"""`launch stop`: it ends the run that it was told to end, and no other process."""

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.core.events import Listener
from launcher.executors import local_run
from launcher.executors.local_run import stop_run
from launcher.host.process_tree import start_time
from launcher.runs.directory import RunDir
from launcher.runs.folder import RunFolderError
from tests.support.cli import launch
from tests.support.exits import exit_code
from tests.support.run_folders import add_events, add_steps, make_run

HOLDS = """\
import signal, sys, threading, time
from pathlib import Path
from launcher.core.states import RunState
from launcher.runs.directory import RunDir

signals, run = [], None
def on_signal(number, frame):
    signals.append(number)
    if len(signals) == int(sys.argv[2]):
        run.set_state(RunState(sys.argv[3]))
        sys.exit()
signal.signal(signal.SIGTERM, on_signal)
run = RunDir.open(Path(sys.argv[1]))
run.set_state(RunState.RUNNING)
print("held", flush=True)
while True:
    time.sleep(60)
"""
"""A launcher that ends with the n-th SIGTERM, in a state."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with make_run(tmp_path) as run:
        add_steps(run, 1, 2)
        add_events(run, {"event": "checkpoint_saved", "process": 0, "step": 2})
    return run.folder


class Held:
    """A run that a process holds."""

    def __init__(self, folder: Path, signals: int, state: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDS, str(folder), str(signals), state],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout
        assert self.process.stdout.readline() == "held\n"


@pytest.fixture
def hold(folder: Path) -> Iterator[type[Held]]:
    held: list[Held] = []

    class Holding(Held):
        def __init__(self, signals: int = 1, state: str = "stopped") -> None:
            super().__init__(folder, signals, state)
            held.append(self)

    yield Holding
    for one in held:
        one.process.kill()
        one.process.communicate()


def state(folder: Path) -> dict:
    return json.loads((folder / "state.json").read_text())


def test_it_asks_once_and_waits_for_the_end(folder: Path, hold) -> None:
    hold()
    done = launch(folder.parents[1], "stop", "small")
    assert done.returncode == 0, done.stderr
    assert "small was stopped at step 2" in done.stdout
    assert "continue with: launch resume small" in done.stdout
    assert state(folder)["state"] == "stopped"


def test_as_json_it_prints_the_status_and_nothing_else(folder: Path, hold) -> None:
    hold()
    done = launch(folder.parents[1], "stop", "small", "-o", "json")
    found = json.loads(done.stdout)
    assert (found["state"], found["alive"], found["exit_code"]) == ("stopped", False, 130)
    assert (found["step"], found["checkpoint"]["step"]) == (2, 2)
    assert "small was stopped at step 2" in done.stderr


def test_run_that_fails_while_stopping_is_reported(folder: Path, hold) -> None:
    hold(state="failed")
    done = launch(folder.parents[1], "stop", "small")
    assert done.returncode == 1
    assert "small failed" in done.stdout


@pytest.mark.parametrize("signals", [2, pytest.param(1000, marks=pytest.mark.slow)])
def test_force_ends_what_does_not_end_and_writes_the_state(
    folder: Path, hold, signals: int
) -> None:
    """With the second SIGTERM; or, where that is not heard, with SIGKILL."""
    holding = hold(signals, "running")
    done = launch(folder.parents[1], "stop", "small", "--force")
    assert done.returncode == 0, done.stderr
    assert holding.process.wait(timeout=10) is not None
    about = state(folder)
    assert (about["state"], about["step"], about["checkpoint"]) == ("stopped", 2, 2)
    assert (about["attempt"], about["steps"]) == (1, 40)


def test_a_run_that_does_not_end_in_time_goes_on(
    folder: Path, hold, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    holding = hold(signals=2)
    monkeypatch.setattr(local_run, "ENDING_TIMEOUT_S", -1e9)
    assert exit_code(lambda: stop_run(folder, force=False, listener=Listener())) == 1
    told = capsys.readouterr().err
    assert "small is still running" in told
    assert "End it immediately: launch stop" in told
    assert holding.process.poll() is None


def test_a_run_that_is_not_running_is_no_error(folder: Path) -> None:
    done = launch(folder.parents[1], "stop", "small")
    assert done.returncode == 0
    assert "not running: small was lost" in done.stdout
    assert "launch resume small" in done.stdout


def test_another_process_of_the_same_id_is_never_signalled(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_run, "OWNER_TIMEOUT_S", 0.1)
    other = subprocess.Popen(["sleep", "60"])
    try:
        with RunDir.open(folder) as run:
            started = 1 + (start_time(other.pid) or 0)
            replace(run.recorded, pid=other.pid, start_time=started).write(folder)
            with pytest.raises(RunFolderError, match="none of this machine"):
                stop_run(folder, force=True, listener=Listener())
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()
