"""Process trees that end with their owner, whatever ends it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from launcher.core.formatting import describe_status
from launcher.host.process_tree import REAPER, ProcessTree, ReaperError, start_time
from launcher.host.reaper import OWNER_FILE
from launcher.providers.ray.workspace import private_folder
from tests.leftovers import Traces, wait_until

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


@pytest.fixture
def traces() -> Iterator[Traces]:
    traces = Traces()
    yield traces
    for process in traces.processes():
        os.kill(process, signal.SIGKILL)
    traces.remove()


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


def test_the_folder_of_a_reaper_is_for_its_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        reaped = ProcessTree(folders=[tmp_path / "private"])
    finally:
        os.umask(before)
    try:
        assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "private" / OWNER_FILE).stat().st_mode & 0o777 == 0o600
    finally:
        reaped.close()


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
folder = Path(sys.argv[1])
reaped = ProcessTree([folder])
reaped.start("sleep", ["bash", "-c", "sleep 99 & sleep 99 & sleep 99"], os.environ, folder / "log")
answers = []
while (more := reaped.answers(1.0)) is not None:
    answers += more
print(json.dumps([answer.get("killed") for answer in answers if "killed" in answer]))
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


def test_cleanup_commands_run_at_the_end(tmp_path: Path) -> None:
    made, gone = tmp_path / "made", tmp_path / "gone"
    reaped = ProcessTree(setup=[["touch", str(made)]], cleanup=[["touch", str(gone)]])
    assert made.exists()
    assert not gone.exists()
    assert reaped.close()
    assert gone.exists()


def test_a_failed_setup_is_undone_and_told(tmp_path: Path) -> None:
    folder, gone = tmp_path / "folder", tmp_path / "gone"
    with pytest.raises(ReaperError, match="No such file"):
        ProcessTree([folder], setup=[["ls", str(tmp_path / "no")]], cleanup=[["touch", str(gone)]])
    assert gone.exists()
    assert not folder.exists()


def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    reaped = ProcessTree()
    reaped.start("nothing", [str(tmp_path / "nothing")], {}, tmp_path / "log")
    answers: list[dict] = []
    wait_until(lambda: answers.extend(reaped.answers(1.0) or [{"over": True}]) or answers)
    assert "nothing" in answers[0]["failed"]
    assert reaped.close()


def test_exit_statuses_are_told_in_words(tmp_path: Path) -> None:
    reaped = ProcessTree()
    reaped.start("shell", ["sh", "-c", "kill -9 $$"], dict(os.environ), tmp_path / "log")
    answers: list[dict] = []
    wait_until(lambda: answers.extend(reaped.answers(1.0) or []) or len(answers) == 2)
    assert describe_status(answers[1]["status"]) == "was killed by SIGKILL"
    assert describe_status(3 << 8) == "exited with code 3"
    assert reaped.close()


def test_a_process_that_is_gone_has_no_start_time() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert start_time(child.pid) is None
    assert start_time(os.getpid()) is not None


def test_a_detached_reaper_ends_with_its_last_command(traces: Traces) -> None:
    with start_owner(traces, "detach", code=OWNER.replace("1000", "3")) as owner:
        owner.communicate()
        assert traces.processes()
        traces.assert_nothing_left(timeout_s=20.0)


def wait_for_answers(reaped: ProcessTree, count: int) -> list[dict]:
    answers: list[dict] = []
    wait_until(lambda: answers.extend(reaped.answers(1.0) or []) or len(answers) >= count)
    return answers


def relays_of(reaped: ProcessTree) -> list[psutil.Process]:
    """The processes that write the logs of a reaper's commands."""
    return list(filter(is_relay, psutil.Process(reaped.pid).children(recursive=True)))


def is_relay(process: psutil.Process) -> bool:
    try:
        return any(part.endswith("log_writer.py") for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def test_a_killed_relay_is_replaced_and_one_that_has_ended_is_not(tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    os.mkfifo(gate)
    reaped = ProcessTree()
    try:
        script = f"echo one; read line < {gate}; echo two"
        reaped.start("shell", ["sh", "-c", script], dict(os.environ), log, rotate_bytes=10_000)
        wait_until(lambda: log.exists() and log.read_text() == "one\n")
        (relay,) = relays_of(reaped)
        relay.kill()
        gate.write_text("go on\n")
        wait_until(lambda: log.read_text() == "one\ntwo\n")
        wait_until(lambda: not relays_of(reaped), 10.0)
    finally:
        assert reaped.close()


def test_a_command_does_not_wait_for_a_log_that_is_nearly_a_mebibyte_behind(
    tmp_path: Path,
) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    os.mkfifo(gate)
    reaped = ProcessTree()
    try:
        script = f"read line < {gate}; head -c 900000 /dev/zero"
        reaped.start("shell", ["sh", "-c", script], dict(os.environ), log, rotate_bytes=1 << 20)
        wait_for_answers(reaped, 1)
        (relay,) = relays_of(reaped)
        relay.suspend()
        gate.write_text("go on\n")
        (answer,) = wait_for_answers(reaped, 1)
        assert answer["exited"] == "shell"
        relay.resume()
        wait_until(lambda: log.exists() and log.stat().st_size == 900_000)
    finally:
        assert reaped.close()


def test_a_reaper_keeps_no_descriptor_of_a_command(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    reaped = ProcessTree(pass_fds=[writing])
    os.close(writing)
    try:
        command = ["bash", "-c", f"echo said >&{writing}"]
        reaped.start("shell", command, dict(os.environ), tmp_path / "log", pass_fds=[writing])
        wait_for_answers(reaped, 2)
        assert os.read(reading, 100) == b"said\n"
        assert os.read(reading, 100) == b"", "every write end is closed"
    finally:
        assert reaped.close()
        os.close(reading)


def open_files(pid: int) -> list[str]:
    return [str(entry.readlink()) for entry in Path(f"/proc/{pid}/fd").iterdir()]


def test_a_guard_holds_only_what_it_needs(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    reaped = ProcessTree([tmp_path / "folder"], pass_fds=[writing])
    try:
        owner_file = str(tmp_path / "folder" / OWNER_FILE)
        wait_until(lambda: len(open_files(reaped.pid)) == 4)
        for_answers, *others = sorted(open_files(reaped.pid), key=lambda name: name[0] == "/")
        assert for_answers.startswith("pipe:")
        assert sorted(others) == sorted([os.devnull, os.devnull, owner_file])
    finally:
        assert reaped.close()
        os.close(reading)
        os.close(writing)


def test_a_command_has_a_session_and_an_oom_score_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = os.umask(0)
    reaped = ProcessTree()
    os.umask(before)
    try:
        command = ["bash", "-c", "cat /proc/$$/oom_score_adj; ps -o sid= -p $$; echo $$"]
        reaped.start("shell", command, dict(os.environ), log, oom_score=500)
        wait_for_answers(reaped, 2)
        score, session, number = log.read_text().split()
        assert score == "500"
        assert session == number
        assert log.stat().st_mode & 0o777 == 0o644
    finally:
        assert reaped.close()


def test_a_folder_that_is_gone_already_does_not_keep_the_others(tmp_path: Path) -> None:
    reaped = ProcessTree([tmp_path / "gone", tmp_path / "other"])
    shutil.rmtree(tmp_path / "gone")
    assert reaped.close()
    assert not (tmp_path / "other").exists()


def test_the_log_is_whole_when_a_reaper_has_ended(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reaped = ProcessTree()
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    script = f"read line < {gate}; echo the end"
    reaped.start("shell", ["sh", "-c", script], dict(os.environ), log, rotate_bytes=10_000)
    wait_for_answers(reaped, 1)
    (relay,) = relays_of(reaped)
    relay.suspend()
    gate.write_text("go on\n")
    wait_for_answers(reaped, 1)
    resumes = threading.Timer(0.5, relay.resume)
    resumes.start()
    assert reaped.close()
    resumes.join()
    assert log.read_text() == "the end\n"


def test_a_failed_setup_is_undone_once(tmp_path: Path) -> None:
    undone = tmp_path / "undone"
    with pytest.raises(ReaperError):
        ProcessTree(setup=[["false"]], cleanup=[["sh", "-c", f"echo undone >> {undone}"]])
    assert undone.read_text() == "undone\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_reaper_that_is_asked_to_end_does_so_in_order(tmp_path: Path, number: int) -> None:
    gone = tmp_path / "gone"
    reaped = ProcessTree(cleanup=[["touch", str(gone)]])
    os.kill(reaped.pid, number)
    answers = []
    while (more := reaped.answers(20.0)) is not None:
        answers += more
    assert answers == []
    assert gone.exists()


def test_a_request_that_cannot_be_read_ends_all_and_is_told(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    first = {"folders": [], "setup": [], "cleanup": [["touch", str(gone)]], "grace_s": 0.0}
    command = [sys.executable, "-I", "-S", str(REAPER)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdin and process.stdout
        process.stdin.write(json.dumps(first) + "\nnonsense\n")
        process.stdin.flush()
        ready, failed, killed = map(json.loads, process.stdout)
    assert ready.keys() == {"ready"}
    assert failed["failed"].startswith("JSONDecodeError: ")
    assert killed == {"killed": "reaper"}
    assert gone.exists()


def test_commands_may_end_in_order_within_the_grace_and_no_longer(tmp_path: Path) -> None:
    ended, log = tmp_path / "ended", tmp_path / "log"
    reaped = ProcessTree(grace_s=10.0)
    script = f"trap 'touch {ended}; exit' TERM; echo up; while true; do sleep 0.05; done"
    reaped.start("in order", ["bash", "-c", script], dict(os.environ), log)
    wait_until(lambda: log.exists() and log.read_text() == "up\n")
    assert reaped.close()
    assert ended.exists()
