"""A run that is left alone: started, looked at, stopped and resumed from other terminals."""

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.runs.folder import is_alive
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launcher
from tests.support.processes import LAUNCH_TIMEOUT_S, run_launcher, wait_until
from trainer.contract.records import checkpoint_metadata

pytestmark = pytest.mark.slow
TIMEOUT_S = 120.0


class Alone:
    """A detached run, and the commands that reach it."""

    def __init__(self, launch: Launcher, elsewhere: Path) -> None:
        self.launch, self.traces, self.elsewhere = launch, launch.traces, elsewhere
        self.folder = launch.folder / "runs" / "small"
        self.cluster = launch.cluster_file("cluster")

    def start(self) -> subprocess.CompletedProcess[str]:
        words = ["-c", str(self.cluster), "job.yaml", "--detach"]
        return run_launcher(self.launch.folder, self.traces.environment, *words)

    def start_in_a_terminal(self) -> None:
        """From a shell in a terminal that is closed as soon as the command has returned."""
        master, terminal = pty.openpty()
        command = f"{sys.executable} -m launcher -c {self.cluster} job.yaml --detach && read line"
        shell = subprocess.Popen(
            ["setsid", "--ctty", "bash", "-c", command],
            cwd=self.launch.folder,
            env=self.traces.environment,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
        )
        os.close(terminal)
        seen = b""
        while b"launch stop" not in seen:
            seen += os.read(master, 4096)
        os.close(master)
        assert shell.wait(TIMEOUT_S) == -signal.SIGHUP

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        """A command in another folder."""
        return run_launcher(self.elsewhere, self.traces.environment, *words)

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """A command in another folder that goes on until the run ends."""
        return subprocess.Popen(
            [sys.executable, "-m", "launcher", *words],
            cwd=self.elsewhere,
            env=self.traces.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def wait_for(self, condition: Callable[[], object]) -> None:
        wait_until(lambda: condition() or not is_alive(self.folder), LAUNCH_TIMEOUT_S)
        assert is_alive(self.folder), (self.folder / "logs" / "launch.log").read_text()

    def wait_for_step(self) -> None:
        self.wait_for(lambda: self.steps() >= 2)

    def steps(self) -> int:
        metrics = self.folder / "metrics.jsonl"
        return metrics.read_text().count("\n") if metrics.exists() else 0

    def state(self) -> str:
        return json.loads((self.folder / "state.json").read_text())["state"]


@pytest.fixture
def alone(
    launch: Launcher, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> Alone:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
    return Alone(launch, tmp_path_factory.mktemp("elsewhere"))


def wait_for_line(process: subprocess.Popen[str], part: str) -> None:
    assert process.stdout
    lines = []
    for line in process.stdout:
        lines.append(line)
        if part in line:
            return
    raise AssertionError(f"it ended with {process.wait()}, without {part!r}: {lines}")


def test_a_run_survives_its_terminal_and_is_stopped_from_another_one(
    alone: Alone, traces: Traces
) -> None:
    alone.start_in_a_terminal()
    alone.wait_for_step()
    (found,) = json.loads(alone("list", "-o", "json").stdout)
    assert (found["name"], found["state"], found["folder"]) == (
        "small",
        "running",
        str(alone.folder),
    )
    alone.wait_for(lambda: "2 hosts x 1 device: 2 train" in alone("status", "small").stdout)
    following = alone.begin("logs", "small", "-f")
    attached = alone.begin("attach", "small")
    for process in (following, attached):
        wait_for_line(process, "host 0 step")
    stopped = alone("stop", "small")
    assert stopped.returncode == 0, stopped.stdout + stopped.stderr
    (last, *_) = checkpoint_metadata.steps(alone.folder / "checkpoints")
    assert f"small was stopped at step {last}, checkpoint of step {last}; con" in stopped.stdout
    for process, code in ((following, 0), (attached, 130)):
        said, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == code, said
        assert f"checkpoint of step {last}" in said
    traces.assert_nothing_left()


@pytest.mark.usefixtures("unhurried")
def test_ctrl_c_lets_go_of_a_run_that_goes_on(alone: Alone, traces: Traces) -> None:
    assert alone.start().returncode == 0
    alone.wait_for_step()
    for words in (["attach", "small"], ["logs", "small", "-f"]):
        process = alone.begin(*words)
        wait_for_line(process, "host 0 step")
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=TIMEOUT_S)
        assert process.returncode == 130, said
        assert "detached: small continues" in said
        assert "launch stop" in said
    before = alone.steps()
    alone.wait_for(lambda: alone.steps() > before + 20)
    assert alone("stop", "small", "--force").returncode == 0
    assert alone.state() == "stopped"
    traces.assert_nothing_left()


@pytest.mark.full
@pytest.mark.usefixtures("unhurried")
def test_a_run_goes_on_detached_on_another_cluster_and_to_its_end(
    alone: Alone, traces: Traces
) -> None:
    assert alone.start().returncode == 0
    alone.wait_for_step()
    assert alone("stop", "small").returncode == 0
    (last, *_) = checkpoint_metadata.steps(alone.folder / "checkpoints")
    one_host = alone.launch.cluster_file("one", hosts=1)
    words = ["resume", "small", "-do", "json", "-c", str(one_host), f"steps={last + 50}"]
    resumed = alone(*words)
    assert resumed.returncode == 0, resumed.stderr
    assert f"changed: steps: 100000 -> {last + 50}" in resumed.stderr
    found = json.loads(resumed.stdout)
    assert (found["alive"], found["attempt"], found["steps"]) == (True, 2, last + 50)
    attached = alone.begin("attach", "small")
    said, _ = attached.communicate(timeout=LAUNCH_TIMEOUT_S)
    assert attached.returncode == 0, said
    assert f"finished {last + 50} steps" in said
    assert alone.state() == "finished"
    assert "\x1b" not in (alone.folder / "logs" / "launch.log").read_text()
    traces.assert_nothing_left()
