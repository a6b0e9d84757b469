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
from launcher.runs.directory import RunDir, is_alive
from tests.support.cli import JOB, launch
from tests.support.processes import wait_until
from tests.support.run_folders import make_run

RUNS_ON = """\
import sys, time
from pathlib import Path
from rich.console import Console
from launcher.executors.local import detach
from launcher.runs.directory import RunDir

with RunDir.open(Path(sys.argv[1])) as run:
    if not detach(run, Console()):
        sys.exit()
    print("detached", flush=True)
    while not (run.folder / "end").exists():
        time.sleep(0.05)
    run.set_state("finished")
"""
"""A launcher whose run ends when it is told to by a file."""


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
    """A run that a process of its own holds, begun by a command that has returned."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        reading, writing = os.pipe()
        self.begun = subprocess.run(
            [sys.executable, "-c", RUNS_ON, str(folder)],
            capture_output=True,
            text=True,
            pass_fds=[writing],
            timeout=60,
        )
        os.close(writing)
        with os.fdopen(reading) as pipe:
            self.kept = pipe.read()  # comes back as soon as nobody has the other end

    @property
    def pid(self) -> int:
        return json.loads((self.folder / "state.json").read_text())["pid"]

    def end(self) -> None:
        (self.folder / "end").touch()
        wait_until(lambda: not is_alive(self.folder), timeout_s=30.0)


@pytest.fixture
def detached(tmp_path: Path) -> Iterator[Detached]:
    with make_run(tmp_path) as run:
        pass
    detached = Detached(run.folder)
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
    wait_until(lambda: log.read_text() == "detached\n", timeout_s=30.0)
    assert "detached" not in detached.begun.stdout


def test_nothing_that_the_caller_had_open_is_kept(detached: Detached) -> None:
    """The pipes of the fixture have come to their ends while the run runs on."""
    assert detached.kept == ""
    assert is_alive(detached.folder)


def test_the_state_is_no_change_and_ends_as_the_process_says(detached: Detached) -> None:
    detached.end()
    events = (detached.folder / "events.jsonl").read_text().splitlines()
    states = [e["state"] for e in map(json.loads, events) if e["event"] == "state"]
    assert states == ["provisioning", "provisioning", "finished"]


def test_the_end_of_the_process_frees_the_run(detached: Detached) -> None:
    os.kill(detached.pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(detached.folder), timeout_s=30.0)
    RunDir.open(detached.folder).close()
