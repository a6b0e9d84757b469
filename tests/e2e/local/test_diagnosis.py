"""What is asked of the processes of a live run: their stacks, and commands beside them."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import psutil
import pytest

from launcher.diagnosis.stacks import group_stacks
from launcher.requests.client import ask
from launcher.requests.messages import ProcessStacks, StacksRequest
from launcher.runs.folder import is_alive
from tests.support.assert_no_leftovers import Traces
from tests.support.launches import Launch, Launcher
from tests.support.processes import run_launcher, wait_until

pytestmark = pytest.mark.slow
STUCK = """\
import faulthandler, os, signal, time
faulthandler.register(signal.SIGUSR1, all_threads=True)

def reduce_gradients():
    time.sleep(100000)

def read_batch():
    time.sleep(100000)

if __name__ == "__main__":
    process = os.environ["SLIPWAY_PROCESS_ID"]
    open(f"pid-{process}", "w").write(str(os.getpid()))
    read_batch() if process == "2" else reduce_gradients()
"""
JOB = "{name: stuck, command: [python, stuck.py], secrets: [A_SECRET]}"


class Stuck:
    """A run of three processes that wait for ever, and commands for it."""

    def __init__(self, launch: Launcher) -> None:
        self.folder, self.traces = launch.folder, launch.traces
        (self.folder / "stuck.py").write_text(STUCK)
        (self.folder / "job.yaml").write_text(JOB)
        cluster = launch.cluster_file("cluster", hosts=3)
        words = ["--cluster", str(cluster), "job.yaml"]
        self.run = Launch(self.folder, self.traces, "stuck", words)
        self.run.wait_for(lambda: all(map(self.pid_of, range(3))))

    def __call__(self, *words: str) -> subprocess.CompletedProcess[str]:
        return run_launcher(self.folder, self.traces.environment, *words)

    def pid_of(self, process: int) -> int:
        path = self.folder / f"pid-{process}"
        return int(path.read_text() or 0) if path.exists() else 0


def steps_of(run: Launch) -> int:
    return (run.run_dir / "metrics.jsonl").read_text().count("\n")


@pytest.fixture(scope="module")
def stuck(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stuck]:
    with Traces() as traces:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("A_SECRET", "the-secret")
            run = Stuck(Launcher(tmp_path_factory.mktemp("stuck"), traces))
        yield run
        run.run.process.terminate()
        run.run.wait()
        assert not traces.processes()


def test_equal_stacks_are_printed_once(stuck: Stuck) -> None:
    done = stuck("stacks", "stuck")
    assert (done.returncode, done.stderr) == (0, "")
    titles = [line for line in done.stdout.splitlines() if not line.startswith(" ")]
    assert titles[0].startswith("2 of 3 processes (host-0000, host-0001)")
    assert "stuck.py:5 in reduce_gradients" in titles[0]
    assert titles[1].startswith("1 of 3 processes (host-0002)")
    assert "stuck.py:8 in read_batch" in titles[1]


def test_stacks_as_json_have_the_frames(stuck: Stuck) -> None:
    found = json.loads(stuck("stacks", "stuck", "-o", "json").stdout)
    assert found["processes"] == 3
    assert [group["processes"] for group in found["groups"]] == [[0, 1], [2]]
    assert found["groups"][1]["frames"][0]["function"] == "read_batch"


def test_process_that_is_stopped_has_a_group(stuck: Stuck) -> None:
    folder, pid = stuck.run.run_dir, stuck.pid_of(1)
    os.kill(pid, signal.SIGSTOP)
    try:
        answers = list(ask(folder, StacksRequest(), partial(is_alive, folder)))
    finally:
        os.kill(pid, signal.SIGCONT)
    groups = group_stacks({a.process: a.text for a in answers if isinstance(a, ProcessStacks)}, {})
    assert [(group.processes, group.state) for group in groups] == [
        ([0], ""), ([1], "T (stopped)"), ([2], "")
    ]  # fmt: skip
    assert "reduce_gradients" in groups[1].place


def test_command_runs_in_the_environment_of_its_host(stuck: Stuck) -> None:
    code = "echo $SLIPWAY_PROCESS_ID $SLIPWAY_NUM_PROCESSES $A_SECRET; pwd; echo no >&2; exit 5"
    done = stuck("exec", "stuck", "--host", "2", "--", "sh", "-c", code)
    assert done.stdout == f"2 3 the-secret\n{stuck.folder}\n"
    assert (done.stderr, done.returncode) == ("no\n", 5)


def test_command_of_its_own_options_gets_them(stuck: Stuck) -> None:
    done = stuck("exec", "stuck", "--", "printf", "%s ", "--host", "-o", "json")
    assert (done.stdout, done.returncode) == ("--host -o json ", 0)


def test_command_as_json_has_its_exit_code_last(stuck: Stuck) -> None:
    done = stuck("exec", "stuck", "-o", "json", "--", "sh", "-c", "echo out; kill -9 $$")
    *output, last = map(json.loads, done.stdout.splitlines())
    assert "".join(line["stdout"] for line in output) == "out\n"
    assert (last, done.returncode) == ({"host": 0, "exit_code": 137}, 137)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_command_ends_with_its_tree(stuck: Stuck, number: int) -> None:
    code = "sleep 1000 & echo $!; wait"
    with subprocess.Popen(
        [sys.executable, "-m", "launcher", "exec", "stuck", "--host", "1", "--", "sh", "-c", code],
        cwd=stuck.folder, env=stuck.traces.environment, stdout=subprocess.PIPE, text=True,
        stderr=subprocess.PIPE,
    ) as asking:  # fmt: skip
        assert asking.stdout and asking.stderr
        pid = int(asking.stdout.readline())
        assert psutil.pid_exists(pid)
        asking.send_signal(number)
        errors = asking.stderr.read()
    assert (asking.returncode == 130) == (number == signal.SIGINT)
    assert ("the command on host-0001 is ended" in errors) == (number == signal.SIGINT)
    wait_until(lambda: not psutil.pid_exists(pid))
    assert is_alive(stuck.run.run_dir)


def test_host_that_does_not_exist_is_an_error(stuck: Stuck) -> None:
    done = stuck("exec", "stuck", "--host", "3", "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert "stuck has no host 3: it has 3 hosts, 0 to 2" in done.stderr


def test_archive_of_a_live_run_has_its_stacks(stuck: Stuck) -> None:
    assert stuck("debug", "stuck", "--to", "live.zip").returncode == 0
    listed = subprocess.run(["python", "-m", "zipfile", "-l", "live.zip"], cwd=stuck.folder,
                            capture_output=True, text=True)  # fmt: skip
    assert "debug-stuck/stacks.json" in listed.stdout


def test_program_that_is_no_trainer_takes_no_trace(stuck: Stuck) -> None:
    done = stuck("profile", "stuck")
    assert (done.returncode, done.stdout) == (3, "")
    assert "host-0000: its program takes no request for a trace now" in done.stderr
    assert is_alive(stuck.run.run_dir)


@pytest.mark.full
@pytest.mark.usefixtures("unhurried")
def test_live_trainer_traces_its_next_steps(launch: Launcher, traces: Traces) -> None:
    run = launch()
    run.wait_for_step()
    ask = partial(run_launcher, launch.folder, traces.environment)
    done = ask("profile", "small", "--steps", "2", "--host", "1", "-o", "json")
    assert done.returncode == 0, done.stderr
    files = {Path(file["path"]): file["bytes"] for file in json.loads(done.stdout)["files"]}
    assert {path.name for path in files} >= {"perfetto_trace.json.gz"}
    assert all(path.stat().st_size == size > 0 for path, size in files.items())
    assert all(run.run_dir / "profile" / "host-0001" in path.parents for path in files)
    assert "profile written to" in run.log(1)
    steps = steps_of(run)
    run.wait_for(lambda: steps_of(run) > steps + 2)
    why = json.loads(ask("why", "small", "-o", "json").stdout)
    assert sum(part["seconds"] for part in why["parts"]) == pytest.approx(why["wall_s"])
    assert why["alive"]
    run.process.terminate()
    run.wait()


def test_requests_leave_nothing_behind(stuck: Stuck) -> None:
    stuck("stacks", "stuck")
    assert not list((stuck.run.run_dir / ".requests").iterdir())
