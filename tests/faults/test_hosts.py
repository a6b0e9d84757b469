"""Hosts that fail, differ or are missing: the message names the cause, and nothing is left."""

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path

import pytest

from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launcher
from tests.support.programs import trainer_of

pytestmark = pytest.mark.faults


def test_a_host_whose_program_is_killed_is_named(launch: Launcher, traces: Traces) -> None:
    run = launch()
    run.wait_for_step()
    os.kill(trainer_of(traces, 1), signal.SIGKILL)
    assert run.wait() == 1
    traces.assert_nothing_left(timeout_s=1.0)
    assert "host-0001 was killed by SIGKILL" in run.reason
    state = json.loads((run.run_dir / "state.json").read_text())
    assert state["state"] == "failed"


def test_a_host_whose_program_dies_at_once_is_named(launch: Launcher, traces: Traces) -> None:
    """Jax refuses to be imported there: the other host waits for a peer that never comes."""
    run = launch(provider=", host_env: {1: {JAX_ENABLE_X64: perhaps}}")
    assert run.wait() == 1
    assert "perhaps" in run.reason
    assert "\nhost-0001 exited with code 1" in run.reason
    traces.assert_nothing_left(timeout_s=1.0)


def test_another_version_on_one_host_is_named(
    launch: Launcher, traces: Traces, tmp_path: Path
) -> None:
    fake = tmp_path / "fake" / "jax-9.9.9.dist-info"
    fake.mkdir(parents=True)
    (fake / "METADATA").write_text("Metadata-Version: 2.1\nName: jax\nVersion: 9.9.9\n")
    run = launch(provider=f", host_env: {{1: {{PYTHONPATH: {fake.parent}}}}}")
    assert run.wait() == 1
    assert "versions.jax differs: host-0001 has 9.9.9" in run.output
    traces.assert_nothing_left(timeout_s=1.0)


def test_a_host_that_never_comes_up_is_named(launch: Launcher, traces: Traces) -> None:
    run = launch(provider=", host_env: {1: {RAY_AUTH_TOKEN_PATH: /no/token}}")
    assert run.wait() == 3
    assert "host-0001 did not start" in run.output
    traces.assert_nothing_left(timeout_s=1.0)


@pytest.mark.full
def test_a_node_that_ends_while_it_starts_is_started_again(
    launch: Launcher, traces: Traces
) -> None:
    run = launch.on(launch.cluster_file("twice"), "twice", ["steps=2"])

    def raylet() -> list[int]:
        commands = traces.processes().items()
        return [p for p, c in commands if "raylet/raylet" in c and "host-0001" in c]

    run.wait_for(raylet)
    for process in raylet():
        os.kill(process, signal.SIGKILL)
    run.wait_for(lambda: "host-0001 ended during its start; starting it again" in run.output)
    assert run.wait() == 0
    assert "3 of 3 Ray nodes are up" in run.output
    traces.assert_nothing_left(timeout_s=1.0)


def test_a_node_that_is_lost_before_the_start_is_named(launch: Launcher, traces: Traces) -> None:
    run = launch()

    def raylet() -> list[int]:
        commands = traces.processes().items()
        return [p for p, c in commands if "raylet/raylet" in c and "host-0001" in c]

    run.wait_for(lambda: "3 of 3 Ray nodes are up" in run.output)
    for process in raylet():
        os.kill(process, signal.SIGKILL)
    assert run.wait() == 3, run.output
    assert "1 of 2 hosts are alive; host 1 is missing" in run.output
    traces.assert_nothing_left(timeout_s=1.0)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted, which needs root")
def test_a_disk_that_fills_up_ends_the_run_with_the_reason(
    launch: Launcher, traces: Traces
) -> None:
    runs = launch.folder / "runs"
    runs.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "small", str(runs)], check=True)
    try:
        run = launch()
        assert run.wait() == 1
        # The trainer may be the first that has no room: then its peer prints a traceback.
        assert not re.search(r'File ".*/launcher/', run.output), run.output
        assert "No space left on device" in run.reason
        traces.assert_nothing_left(timeout_s=1.0)
    finally:
        subprocess.run(["umount", "--lazy", str(runs)], check=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="a small disk is mounted, which needs root")
def test_a_disk_without_room_for_a_checkpoint_is_named(launch: Launcher, traces: Traces) -> None:
    runs = launch.folder / "runs"
    runs.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300k", "small", str(runs)]
    subprocess.run(mount, check=True)
    try:
        run = launch.on(launch.cluster_file("small"), "small", ["model.layers=16"])
        assert run.wait() == 1
        assert "the hosts cannot serve this run" in run.output
        assert "of disk space are free, but a checkpoint takes" in run.output
        assert not (run.run_dir / "logs" / "host-0000.log").exists(), "no program has started"
        assert not [event for event in run.events() if event["event"] == "started"]
        traces.assert_nothing_left(timeout_s=1.0)
    finally:
        subprocess.run(["umount", "--lazy", str(runs)], check=True)


HANGING_IMPORT = """\
import os, signal, sys
class Hang:
    def find_spec(self, name, path=None, target=None):
        if name == "{module}" and "default_worker.py" in " ".join(sys.orig_argv):
            try:
                os.mkdir("{once}")
            except FileExistsError:
                return None
            os.kill(os.getpid(), signal.SIGSTOP)
sys.meta_path.insert(0, Hang())
"""


@pytest.mark.full
@pytest.mark.parametrize("module", ("ray", "launcher.gang.agent"))
def test_agent_hanging_at_start_is_recreated(
    launch: Launcher, traces: Traces, tmp_path: Path, module: str
) -> None:
    """Before it is known to its node, which starts another; and after, when only we can."""
    (tmp_path / "hanging").mkdir()
    code = HANGING_IMPORT.format(module=module, once=tmp_path / "once")
    (tmp_path / "hanging" / "sitecustomize.py").write_text(code)
    run = launch(provider=f", host_env: {{1: {{PYTHONPATH: {tmp_path / 'hanging'}}}}}")
    run.wait_for_step()
    assert (tmp_path / "once").exists()
    assert "1 of 2 agents are up" in run.output
    warned = "no response from the agent of host-0001" in run.output
    assert warned == (module == "launcher.gang.agent")
    os.killpg(run.process.pid, signal.SIGINT)
    assert run.wait(timeout_s=60.0) == 130
    traces.assert_nothing_left(timeout_s=1.0)


def test_when_ray_is_stuck_the_launch_says_so_and_keeps_its_logs(
    launch: Launcher, traces: Traces
) -> None:
    run = launch()
    run.wait_for(lambda: "3 of 3 Ray nodes are up" in run.output)
    for process, command in traces.processes().items():
        if "gcs_server" in command:
            os.kill(process, signal.SIGSTOP)
    assert run.wait() == 3
    kept = run.run_dir / "logs" / "ray"
    assert f"Ray's own logs: {kept}" in run.output
    assert (kept / "head" / "gcs_server.out").stat().st_size
    assert (kept / "host-0001.log").stat().st_size
    traces.assert_nothing_left(timeout_s=1.0)


def test_a_taken_coordinator_port_is_replaced(launch: Launcher, traces: Traces) -> None:
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        run = launch(more=f"coordinator_port: {taken.getsockname()[1]}")
        run.wait_for_step()
        os.killpg(run.process.pid, signal.SIGINT)
        run.wait(timeout_s=60.0)
    traces.assert_nothing_left()
