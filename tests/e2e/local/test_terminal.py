"""Foreground runs whose terminal, or whose reader, goes away."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launcher
from tests.support.processes import run_launcher, wait_until
from tests.support.programs import is_training
from tests.support.sampling import sampled
from tests.support.terminal import Terminal
from trainer.contract.records import checkpoint_metadata

pytestmark = pytest.mark.slow
TIMEOUT_S = 120.0


def opened(launch: Launcher, command: list[str]) -> Terminal:
    """A terminal with a run in the foreground that has made its first steps."""
    terminal = Terminal(command, launch.folder, launch.traces.environment)
    wait_for(terminal, lambda: steps_of(launch) >= 2)
    return terminal


def wait_for(terminal: Terminal, condition: Callable[[], bool]) -> None:
    """Waits while the command lives; what it printed is the error otherwise."""

    def is_reached() -> bool:
        assert terminal.process.poll() is None, terminal.output
        return condition()

    wait_until(is_reached, TIMEOUT_S)


def steps_of(launch: Launcher) -> int:
    metrics = launch.folder / "runs" / "small" / "metrics.jsonl"
    return metrics.read_text().count("\n") if metrics.exists() else 0


def launch_words(launch: Launcher) -> list[str]:
    cluster = launch.cluster_file("cluster", hosts=1)
    words = [sys.executable, "-m", "launcher", "-c", str(cluster), "job.yaml"]
    return [*words, "checkpoint.every_steps=100000"]


def state_of(folder: Path) -> str:
    return json.loads((folder / "state.json").read_text())["state"]


@pytest.mark.parametrize(
    "with_shell", sampled({"alone": False, "in a shell": True}, ("in a shell",))
)
def test_a_foreground_run_whose_terminal_closes_saves_and_leaves_nothing(
    launch: Launcher, traces: Traces, with_shell: bool
) -> None:
    words = launch_words(launch)
    shell = ["bash", "-ic", " ".join(words) + "; read line"]
    run_dir = launch.folder / "runs" / "small"
    terminal = opened(launch, shell if with_shell else words)
    terminal.close()
    code = terminal.process.wait(TIMEOUT_S)
    wait_until(lambda: state_of(run_dir) != "running", TIMEOUT_S)
    traces.assert_nothing_left(timeout_s=30.0)
    assert with_shell or code == 130
    assert state_of(run_dir) == "interrupted"
    (last,) = checkpoint_metadata.steps(run_dir / "checkpoints")
    assert last >= 2
    found = run_launcher(launch.folder, traces.environment, "status", "small").stdout
    assert f"step {last}" in found
    assert "continue with: launch resume small" in found


def test_ctrl_z_does_not_suspend_a_run_and_a_second_ctrl_c_ends_it_at_once(
    launch: Launcher, traces: Traces
) -> None:
    terminal = opened(launch, launch_words(launch))
    terminal.type(b"\x1a")
    wait_for(terminal, lambda: "cannot be suspended" in terminal.output)
    before = steps_of(launch)
    wait_for(terminal, lambda: steps_of(launch) > before + 5)
    host = next(filter(is_training, traces.processes()))
    os.kill(host, signal.SIGSTOP)  # it cannot stop in order
    terminal.type(b"\x03")
    wait_for(terminal, lambda: "second Ctrl-C ends immediately" in terminal.output)
    terminal.type(b"\x03")
    assert terminal.process.wait(TIMEOUT_S) == 130
    terminal.close()
    traces.assert_nothing_left(timeout_s=30.0)


def test_program_finishes_without_reader_and_with_non_ascii_output(
    launch: Launcher, traces: Traces
) -> None:
    (launch.folder / "job.yaml").write_text(
        "name: small\ncommand: [bash, -c, 'for i in $(seq 5); do echo café $i; sleep 0.5; done']\n"
    )
    words = launch_words(launch)[:-1]
    reading = "(while read line; do case $line in *caf*) exit;; esac; done)"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{' '.join(words)} | {reading}"],
        cwd=launch.folder,
        env={**traces.environment, "PYTHONIOENCODING": "ascii"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert (done.returncode, done.stderr) == (0, "")
    folder = launch.folder / "runs" / "small"
    assert state_of(folder) == "finished"
    assert (folder / "logs" / "host-0000.log").read_text().count("café") == 5
    events = [json.loads(line) for line in (folder / "events.jsonl").read_text().splitlines()]
    (off,) = [event for event in events if event["event"] == "display_off"]
    assert off["reason"] == "[Errno 32] Broken pipe"
    traces.assert_nothing_left()
