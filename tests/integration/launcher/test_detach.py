"""`--detach`: what is refused is refused in the foreground, and nothing of the caller is kept."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.host.process_tree import start_time
from launcher.runs.directory import RunDir
from launcher.runs.folder import is_alive
from tests.support.assert_no_leftovers import Traces
from tests.support.cli import JOB, launch
from tests.support.processes import LAUNCH_TIMEOUT_S, wait_until
from tests.support.run_folders import make_run

WAITING_JOB = """\
name: small
command: [sh, -c, "echo begun; while [ ! -e end ]; do sleep 0.1; done"]
grace_s: 1
"""
"""A program that ends once there is a file `end`."""
ONE_HOST = "{accelerator: cpu, hosts: 1, devices_per_host: 1, provider: {kind: local}}"


def test_a_run_that_exists_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    make_run(tmp_path, "tiny").close()
    refused = launch(tmp_path, "job.yaml", "--detach")
    assert refused.returncode == 2
    assert "launch resume tiny" in refused.stderr
    assert not (tmp_path / "runs" / "tiny" / "logs" / "launch.log").exists()


def test_a_cluster_that_cannot_be_reached_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text(JOB)
    refused = launch(tmp_path, "-c", "v4-32", "job.yaml", "--detach")
    assert refused.returncode == 3
    assert "v4-32 has 4 hosts" in refused.stderr
    assert not (tmp_path / "runs").exists()


def test_an_error_of_the_new_process_reaches_the_user(tmp_path: Path) -> None:
    with make_run(tmp_path) as run:
        (run.folder / "logs" / "launch.log").mkdir()
    refused = launch(tmp_path, "resume", "small", "--detach")
    assert refused.returncode == 2
    assert "the run could not be detached: " in refused.stderr
    assert "Is a directory" in refused.stderr
    assert not is_alive(run.folder)


class Detached:
    """A run of a background process, begun by a command that has returned."""

    def __init__(self, folder: Path, traces: Traces) -> None:
        self._folder, self.folder = folder, folder / "runs" / "small"
        (folder / "job.yaml").write_text(WAITING_JOB)
        (folder / "one.yaml").write_text(ONE_HOST)
        reading, writing = os.pipe()
        self.begun = subprocess.run(
            [sys.executable, "-m", "launcher", "-c", "one.yaml", "job.yaml", "--detach"],
            cwd=folder,
            env=traces.environment,
            capture_output=True,
            text=True,
            pass_fds=[writing],
            timeout=LAUNCH_TIMEOUT_S,
        )
        os.close(writing)
        with os.fdopen(reading) as pipe:
            self.kept = pipe.read()  # returns as soon as no process has the other end

    @property
    def pid(self) -> int:
        return json.loads((self.folder / "state.json").read_text())["pid"]

    def end(self) -> None:
        (self._folder / "end").touch()
        wait_until(lambda: not is_alive(self.folder))


@pytest.fixture(scope="module")
def detached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Detached]:
    with Traces() as traces:
        detached = Detached(tmp_path_factory.mktemp("detached"), traces)
        yield detached
        detached.end()


def test_the_run_is_held_when_the_command_returns(detached: Detached) -> None:
    assert detached.begun.returncode == 0, detached.begun.stderr
    assert is_alive(detached.folder)
    state = json.loads((detached.folder / "state.json").read_text())
    assert state["start_time"] == start_time(state["pid"])


def test_it_says_how_the_run_is_found_again(detached: Detached) -> None:
    for words in ("launch attach ", "launch logs ", "launch status ", "launch stop ", "launch.log"):
        assert words in detached.begun.stdout


def test_it_is_in_a_session_of_its_own_without_a_terminal(detached: Detached) -> None:
    assert os.getsid(detached.pid) == detached.pid
    assert Path(f"/proc/{detached.pid}/fd/0").readlink() == Path(os.devnull)


def test_its_output_goes_into_the_log(detached: Detached) -> None:
    log = detached.folder / "logs" / "launch.log"
    wait_until(lambda: "host 0 begun" in log.read_text())
    assert "begun" not in detached.begun.stdout


def test_nothing_that_the_caller_had_open_is_kept(detached: Detached) -> None:
    """The pipes of the fixture have come to their ends while the run runs on."""
    assert detached.kept == ""
    assert is_alive(detached.folder)


def test_a_second_command_for_a_detached_run_is_refused(detached: Detached) -> None:
    refused = launch(detached.folder.parents[1], "resume", "small", "--detach")
    assert refused.returncode == 2
    assert "this run is running now" in refused.stderr


def test_the_end_of_the_process_frees_the_run(detached: Detached) -> None:
    os.kill(detached.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(detached.folder))
    RunDir.open(detached.folder).close()


def test_detached_run_resumes_in_background_and_ends_like_its_program(
    detached: Detached,
) -> None:
    resumed = launch(detached.folder.parents[1], "resume", "small", "--detach")
    assert resumed.returncode == 0, resumed.stderr
    assert is_alive(detached.folder)
    detached.end()
    assert json.loads((detached.folder / "state.json").read_text())["state"] == "finished"
