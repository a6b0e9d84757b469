"""Runs on a cluster that was started before them and outlives them."""

import json
import os
import signal
import subprocess
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launcher
from tests.support.processes import run_launcher, wait_until
from tests.support.programs import is_training, standby_of, trainer_of

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("unhurried")]


def command(launch: Launcher, *words: str) -> subprocess.CompletedProcess[str]:
    return run_launcher(launch.folder, launch.traces.environment, *words)


def no_trainer(traces: Traces) -> bool:
    return not any(is_training(number) for number in traces.processes())


def trainers(of: Callable[[Traces, int], int], traces: Traces) -> list[int]:
    """Process ids, by host."""
    return [of(traces, process) for process in range(2)]


def test_warm_cluster_survives_its_runs_and_ends_on_command(
    launch: Launcher, traces: Traces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    cluster = launch.cluster_file("pod")
    with ThreadPoolExecutor() as pool:  # both at once: only one starts it
        ups = [pool.submit(command, launch, "up", str(cluster)) for _ in range(2)]
    assert [up.result().returncode for up in ups] == [0, 0], ups
    assert sorted("already" in up.result().stdout for up in ups) == [False, True]

    waiting = trainers(standby_of, traces)
    killed = launch.on(cluster, "killed")
    killed.wait_for_step()
    assert trainers(trainer_of, traces) == waiting
    busy = launch.on(cluster, "busy")
    assert busy.wait() == 3
    assert "in use by another run" in busy.output
    killed.process.kill()
    killed.wait()
    wait_until(lambda: no_trainer(traces), 30.0)

    waiting = trainers(standby_of, traces)
    after = launch.on(cluster, "after")
    after.wait_for_step()
    assert trainers(trainer_of, traces) == waiting
    assert "step 1/" in after.log(0)
    os.killpg(after.process.pid, signal.SIGINT)
    assert after.wait(timeout_s=60.0) == 130
    wait_until(lambda: no_trainer(traces), 30.0)

    stopped = launch.on(cluster, "stopped")
    stopped.wait_for_step()
    down = command(launch, "down", str(cluster))
    assert down.returncode == 2 and str(stopped.run_dir) in down.stderr.replace("\n", "")
    assert stopped.process.poll() is None
    down = command(launch, "down", str(cluster), "--yes")
    assert down.returncode == 0, down.stderr
    assert stopped.wait() == 130, stopped.output
    assert stopped.log(0) and json.loads((stopped.run_dir / "state.json").read_text())["checkpoint"]
    traces.assert_nothing_left(timeout_s=1.0)
