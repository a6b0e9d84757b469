"""Process trees that end with their owner, whatever ends it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from launcher.host.process_tree import start_time
from launcher.host.reaper import OWNER_FILE
from launcher.providers.ray.workspace import private_folder
from tests.support.assert_no_leftovers import Traces
from tests.support.processes import wait_until

OWNER = """
import os, sys, time
from pathlib import Path
from launcher.host.process_tree import ProcessTree
folder = Path(sys.argv[1])
reaped = ProcessTree(folders=[folder])
script = "(setsid sleep 1000 &); (trap '' TERM; sleep 1000) & sleep 1000"
reaped.start("shell", ["bash", "-c", script], os.environ, folder / "log")
if len(sys.argv) > 2:
    reaped.detach()
    print(reaped.pid, flush=True)
else:
    print("up", flush=True)
    time.sleep(1000)
"""


def start_owner(
    traces: Traces, *more: str, code: str = OWNER, folder: str = "folder"
) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(traces.temporary / folder), *more]
    environment = traces.environment
    owner = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        wait_until(lambda: sum("sleep" in c for c in traces.processes().values()) >= 3)
    except TimeoutError:
        owner.kill()
        owner.communicate()
        raise
    return owner


def test_a_tree_ends_with_an_owner_that_dies_in_an_orderly_stop(traces: Traces) -> None:
    """As fast as without: the lifeline has a short grace of its own."""
    # It asks when the shell has set its trap, and so lives on.
    code = OWNER.replace("else:", "else:\n    sys.stdin.readline()\n    reaped.ask_to_end(99.0)")
    code = code.replace('script = "', 'script = "trap : TERM; ')
    with start_owner(traces, code=code) as owner:
        assert owner.stdin and owner.stdout
        owner.stdin.write("now\n")
        owner.stdin.flush()
        assert owner.stdout.readline() == "up\n"
        owner.kill()
        owner.wait()
        traces.assert_nothing_left(timeout_s=10.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_tree_ends_with_its_owner(traces: Traces, number: int) -> None:
    with start_owner(traces) as owner:
        owner.send_signal(number)
        owner.wait()
        traces.assert_nothing_left()


@contextmanager
def ended(owner: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    """An owner that does not outlive a test that fails."""
    with owner:
        try:
            yield owner
        finally:
            owner.kill()


def reapers_of(traces: Traces) -> tuple[int, int]:
    """The guard and the reaper."""
    found = [number for number, command in traces.processes().items() if "reaper.py" in command]
    (reaper,) = [number for number in found if psutil.Process(number).ppid() in found]
    return psutil.Process(reaper).ppid(), reaper


@pytest.mark.parametrize("which", [0, 1], ids=["guard", "reaper"])
def test_kill_9_of_a_reaper_leaves_nothing_of_the_tree(traces: Traces, which: int) -> None:
    with ended(start_owner(traces)) as owner:
        os.kill(reapers_of(traces)[which], signal.SIGKILL)
        wait_until(lambda: traces.processes().keys() == {owner.pid} and not traces.folders(), 20.0)


@pytest.mark.parametrize("which", [0, 1], ids=["guard", "reaper"])
def test_kill_9_of_a_reaper_runs_the_cleanup_commands(
    traces: Traces, tmp_path: Path, which: int
) -> None:
    gone = tmp_path / "gone"
    code = OWNER.replace("[folder])", f"[folder], cleanup=[['touch', {str(gone)!r}]])")
    with ended(start_owner(traces, code=code)):
        os.kill(reapers_of(traces)[which], signal.SIGKILL)
        wait_until(gone.exists, 20.0)


@pytest.mark.parametrize("which", [0, 1], ids=["guard", "reaper"])
def test_the_owner_learns_that_a_reaper_was_killed_once_all_is_gone(
    traces: Traces, which: int
) -> None:
    code = """
import json, os, sys
from pathlib import Path
from launcher.host.process_tree import ProcessTree
from launcher.host.reaper_messages import Killed
folder = Path(sys.argv[1])
reaped = ProcessTree([folder])
reaped.start("sleep", ["bash", "-c", "sleep 99 & sleep 99 & sleep 99"], os.environ, folder / "log")
answers = []
while (more := reaped.answers(1.0)) is not None:
    answers += more
print(json.dumps([answer.process for answer in answers if isinstance(answer, Killed)]))
"""
    with ended(start_owner(traces, code=code)) as owner:
        os.kill(reapers_of(traces)[which], signal.SIGKILL)
        output, _ = owner.communicate(timeout=20.0)
    assert json.loads(output) == [["guard", "reaper"][which]]
    traces.assert_nothing_left(timeout_s=0.0)


def test_a_launch_removes_what_two_killed_reapers_left(
    traces: Traces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    gone = tmp_path / "gone"
    code = OWNER.replace("[folder])", f"[folder], cleanup=[['touch', {str(gone)!r}]])")
    code = code.replace(
        "os.environ", "{**os.environ, 'RAY_AUTH_TOKEN_PATH': str(folder / 'token')}"
    )
    monkeypatch.setattr("tempfile.tempdir", str(traces.temporary))
    with ended(start_owner(traces, folder="slipway-0", code=code)):
        private_folder()
        assert traces.folders() == ["slipway-0"], "its owner lives"
        reapers = reapers_of(traces)
        for sent in (signal.SIGSTOP, signal.SIGKILL):
            for number in reapers:
                os.kill(number, sent)
        wait_until(lambda: not any(map(start_time, reapers)))
    assert any("sleep" in command for command in traces.processes().values())
    private_folder()
    traces.assert_nothing_left(timeout_s=5.0)
    assert gone.exists()


def test_commands_in_a_folder_that_others_may_write_are_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("launcher.providers.ray.workspace.LONGEST_TEMPORARY_FOLDER", 999)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    made = tmp_path / "made"
    for name, mode in (("slipway-open", 0o777), ("slipway-own", 0o700)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        (tmp_path / name / OWNER_FILE).write_text(json.dumps([["touch", f"{made}-{name}"]]))
    private_folder()
    assert {path.name for path in tmp_path.iterdir()} == {"slipway-open", "made-slipway-own"}


def test_a_detached_tree_ends_when_its_reaper_is_asked_to(traces: Traces) -> None:
    with start_owner(traces, "detach") as owner:
        output, _ = owner.communicate()
        assert traces.processes()
        os.kill(int(output), signal.SIGTERM)
        traces.assert_nothing_left()


def test_a_detached_tree_lives_to_the_end_of_its_last_command(
    traces: Traces, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    code = OWNER.replace("1000", "3").replace('& sleep 3"', f'& sleep 3; touch {done}"')
    with start_owner(traces, "detach", code=code) as owner:
        owner.communicate()
        traces.assert_nothing_left(timeout_s=20.0)
    assert done.exists()
