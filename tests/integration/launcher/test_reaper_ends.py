"""How a reaper and its commands end: in order, by a signal, or killed."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from launcher.host import reaper
from launcher.host.process_tree import REAPER, ProcessTree
from launcher.host.reaper_messages import Exited, Killed
from tests.support.processes import wait_until
from tests.support.reapers import (
    TIMEOUT_S,
    WAIT,
    answers_to_the_end,
    reaper_of,
    relays_of,
    wait_for_answers,
)


def test_the_log_is_whole_when_the_cleanup_commands_run(tmp_path: Path) -> None:
    gate, log, copy = tmp_path / "gate", tmp_path / "log", tmp_path / "copy"
    reaped = ProcessTree(cleanup=[["cp", str(log), str(copy)]])
    script = f"{WAIT.format(gate)}; echo the end"
    reaped.start("shell", ["sh", "-c", script], dict(os.environ), log, rotate_bytes=10_000)
    wait_for_answers(reaped, 1)
    (relay,) = relays_of(reaped)
    relay.suspend()
    gate.touch()
    wait_for_answers(reaped, 1)
    resumes = threading.Timer(0.3, relay.resume)
    resumes.start()
    assert reaped.close()
    resumes.join()
    assert copy.read_text() == "the end\n"


def test_a_log_that_the_disk_delays_does_not_keep_the_cleanup_from_running(tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    reaped = ProcessTree(cleanup=[["touch", str(gone)]])
    command = ["sleep", "1000"]
    reaped.start("sleep", command, dict(os.environ), tmp_path / "log", rotate_bytes=10_000)
    wait_for_answers(reaped, 1)
    (relay,) = relays_of(reaped)
    relay.suspend()
    reaped.let_go()
    try:
        wait_until(gone.exists, TIMEOUT_S)
    finally:
        relay.resume()
    assert reaped.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_reaper_that_is_asked_to_end_does_so_in_order(tmp_path: Path, number: int) -> None:
    gone = tmp_path / "gone"
    reaped = ProcessTree(cleanup=[["touch", str(gone)]])
    os.kill(reaped.pid, number)
    assert answers_to_the_end(reaped) == []
    assert gone.exists()


def test_unreadable_request_ends_all_and_is_reported(tmp_path: Path) -> None:
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
    assert ready["message"] == "ready"
    assert failed["message"] == "failed"
    assert failed["reason"].startswith("JSONDecodeError: ")
    assert killed == {"message": "killed", "process": "reaper"}
    assert gone.exists()


ASKED = "trap 'echo asked' TERM; echo up; sleep 1000 & while true; do wait; done"
"""A shell that prints at once, and lives on, when it gets SIGTERM."""


def test_commands_may_end_in_order_within_the_grace(tmp_path: Path) -> None:
    """Also within one that is longer than the time for what SIGKILL does not end."""
    ended, log = tmp_path / "ended", tmp_path / "log"
    reaped = ProcessTree(grace_s=reaper.ENDING_TIMEOUT_S + 10.0)
    script = f"trap 'sleep 0.3; touch {ended}; exit' TERM; echo up; sleep 1000 & wait"
    reaped.start("in order", ["bash", "-c", script], dict(os.environ), log)
    wait_until(lambda: log.exists() and log.read_text() == "up\n", TIMEOUT_S)
    assert reaped.close()
    assert ended.exists()


def test_commands_that_outlast_the_grace_of_an_orderly_end_are_asked_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reaped = ProcessTree(grace_s=10.0)
    reaped.start("shell", ["bash", "-c", ASKED], dict(os.environ), log)
    wait_until(lambda: log.exists() and log.read_text() == "up\n", TIMEOUT_S)
    reaped.ask_to_end(0.2)
    *_, exited = answers_to_the_end(reaped)
    assert isinstance(exited, Exited)
    assert exited.status == signal.SIGKILL
    assert log.read_text() == "up\nasked\n"


def test_what_a_killed_reaper_leaves_has_no_grace(tmp_path: Path) -> None:
    log = tmp_path / "log"
    reaped = ProcessTree(grace_s=10.0)
    reaped.start("shell", ["bash", "-c", f"({ASKED}) & wait"], dict(os.environ), log)
    wait_until(lambda: log.exists() and log.read_text() == "up\n", TIMEOUT_S)
    reaper_of(reaped).kill()
    assert answers_to_the_end(reaped)[-1] == Killed("reaper")
    assert log.read_text() == "up\n"


def test_a_signal_does_not_interrupt_the_cleanup_after_a_killed_reaper(tmp_path: Path) -> None:
    folder, begun, gate = tmp_path / "folder", tmp_path / "begun", tmp_path / "gate"
    script = f"touch {begun}; {WAIT.format(gate)}"
    reaped = ProcessTree([folder], cleanup=[["sh", "-c", script]])
    reaper_of(reaped).kill()
    wait_until(begun.exists, TIMEOUT_S)
    os.kill(reaped.pid, signal.SIGTERM)
    gate.touch()
    answers_to_the_end(reaped)
    assert not folder.exists()


def test_a_process_that_has_just_ended_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither from a look at /proc nor from a signal."""
    gone, alive = subprocess.Popen(["true"]), subprocess.Popen(["sleep", "1000"])
    gone.wait()
    real = os.listdir
    monkeypatch.setattr(os, "listdir", lambda folder: [str(gone.pid), *real(folder)])
    try:
        assert alive.pid in reaper.descendants(os.getpid())
        reaper.signal_all([gone.pid, alive.pid], signal.SIGKILL)
        assert alive.wait(TIMEOUT_S) == -signal.SIGKILL
    finally:
        alive.kill()
        alive.wait()
