"""What a reaper does for its owner: folders, setup and cleanup, commands and their logs."""

import fcntl
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.core.formatting import describe_status
from launcher.host import reaper
from launcher.host.process_tree import ProcessTree, ReaperError, start_time
from launcher.host.reaper import OWNER_FILE
from launcher.host.reaper_messages import Exited, Failed, Started
from tests.support.processes import wait_until
from tests.support.reapers import (
    TIMEOUT_S,
    WAIT,
    answers_to_the_end,
    closed,
    open_files,
    relays_of,
    wait_for_answers,
)


def test_the_folder_of_a_reaper_is_for_its_user_only(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        reaped = ProcessTree(folders=[tmp_path / "private"])
    finally:
        os.umask(before)
    with closed(reaped):
        assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
        assert (tmp_path / "private" / OWNER_FILE).stat().st_mode & 0o777 == 0o600


def test_cleanup_commands_run_at_the_end(tmp_path: Path) -> None:
    made, gone = tmp_path / "made", tmp_path / "gone"
    reaped = ProcessTree(setup=[["touch", str(made)]], cleanup=[["touch", str(gone)]])
    assert made.exists()
    assert not gone.exists()
    assert reaped.close()
    assert gone.exists()


def test_a_failed_setup_is_undone_and_reported_as_printed(tmp_path: Path) -> None:
    folder, gone = tmp_path / "folder", tmp_path / "gone"
    with pytest.raises(ReaperError, match=r"^ls \S+: ls: .*No such file"):
        ProcessTree([folder], setup=[["ls", str(tmp_path / "no")]], cleanup=[["touch", str(gone)]])
    assert gone.exists()
    assert not folder.exists()


def test_a_failed_setup_is_undone_once(tmp_path: Path) -> None:
    undone = tmp_path / "undone"
    with pytest.raises(ReaperError):
        ProcessTree(setup=[["false"]], cleanup=[["sh", "-c", f"echo undone >> {undone}"]])
    assert undone.read_text() == "undone\n"


def test_a_folder_that_is_gone_already_does_not_keep_the_others(tmp_path: Path) -> None:
    reaped = ProcessTree([tmp_path / "gone", tmp_path / "other"])
    shutil.rmtree(tmp_path / "gone")
    assert reaped.close()
    assert not (tmp_path / "other").exists()


def test_a_command_that_does_not_exist_is_reported_and_ends_the_others(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    reaped = ProcessTree()
    reaped.start("sleep", ["sleep", "1000"], dict(os.environ), tmp_path / "log")
    reaped.start("missing", [str(missing)], {}, tmp_path / "log")
    started, failed, exited = answers_to_the_end(reaped)
    assert isinstance(started, Started)
    assert isinstance(exited, Exited)
    assert started.name == exited.name == "sleep"
    assert failed == Failed(f"[Errno 2] No such file or directory: '{missing}'")


def test_exit_statuses_are_described_in_words(tmp_path: Path) -> None:
    with closed(ProcessTree()) as reaped:
        reaped.start("shell", ["sh", "-c", "kill -9 $$"], dict(os.environ), tmp_path / "log")
        _, exited = wait_for_answers(reaped, 2)
        assert isinstance(exited, Exited)
        assert describe_status(exited.status) == "was killed by SIGKILL"
        assert describe_status(3 << 8) == "exited with code 3"


def test_a_process_that_is_gone_has_no_start_time() -> None:
    child = subprocess.Popen(["true"])
    child.wait()
    assert start_time(child.pid) is None
    assert start_time(os.getpid()) is not None


def test_a_killed_relay_is_replaced_and_one_that_has_ended_is_not(tmp_path: Path) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    with closed(ProcessTree()) as reaped:
        script = f"echo one; {WAIT.format(gate)}; echo two"
        reaped.start("shell", ["sh", "-c", script], dict(os.environ), log, rotate_bytes=10_000)
        wait_until(lambda: log.exists() and log.read_text() == "one\n", TIMEOUT_S)
        (relay,) = relays_of(reaped)
        relay.kill()
        gate.touch()
        wait_until(lambda: log.read_text() == "one\ntwo\n", TIMEOUT_S)
        wait_until(lambda: not relays_of(reaped), TIMEOUT_S)
        for _ in range(20):
            assert not relays_of(reaped), "it is not started again"
            time.sleep(0.02)


def test_command_does_not_wait_for_log_almost_a_mebibyte_behind(
    tmp_path: Path,
) -> None:
    gate, log = tmp_path / "gate", tmp_path / "log"
    with closed(ProcessTree()) as reaped:
        script = f"{WAIT.format(gate)}; head -c 900000 /dev/zero"
        reaped.start("shell", ["sh", "-c", script], dict(os.environ), log, rotate_bytes=1 << 20)
        wait_for_answers(reaped, 1)
        (relay,) = relays_of(reaped)
        relay.suspend()
        gate.touch()
        (answer,) = wait_for_answers(reaped, 1)
        assert isinstance(answer, Exited)
        assert answer.name == "shell"
        relay.resume()
        wait_until(lambda: log.exists() and log.stat().st_size == 900_000, TIMEOUT_S)


def test_the_pipe_of_a_log_is_no_larger_than_every_user_may_make_it(tmp_path: Path) -> None:
    """The kernel's default of /proc/sys/fs/pipe-max-size: it refuses more, and 64 KiB remain."""
    with closed(ProcessTree()) as reaped:
        command = ["sleep", "1000"]
        reaped.start("sleep", command, dict(os.environ), tmp_path / "log", rotate_bytes=10_000)
        wait_for_answers(reaped, 1)
        (relay,) = relays_of(reaped)
        with Path(f"/proc/{relay.pid}/fd/0").open("rb", buffering=0) as pipe:
            assert fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) == 1 << 20


def test_a_reaper_keeps_no_descriptor_of_a_command(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    reaped = ProcessTree(pass_fds=[writing])
    os.close(writing)
    with closed(reaped):
        command = ["bash", "-c", f"echo said >&{writing}"]
        reaped.start("shell", command, dict(os.environ), tmp_path / "log", pass_fds=[writing])
        wait_for_answers(reaped, 2)
        assert os.read(reading, 100) == b"said\n"
        assert select.select([reading], [], [], TIMEOUT_S)[0], "every write end is closed"
        assert os.read(reading, 100) == b""
    os.close(reading)


def test_a_guard_holds_only_what_it_needs(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    with closed(ProcessTree([tmp_path / "folder"], pass_fds=[writing])) as reaped:
        owner_file = str(tmp_path / "folder" / OWNER_FILE)
        wait_until(lambda: len(open_files(reaped.pid)) == 4, TIMEOUT_S)
        for_answers, *others = sorted(open_files(reaped.pid), key=lambda name: name[0] == "/")
        assert for_answers.startswith("pipe:")
        assert sorted(others) == sorted([os.devnull, os.devnull, owner_file])
    os.close(reading)
    os.close(writing)


def test_a_guard_holds_no_descriptor_of_its_owner_however_low() -> None:
    """In a program that has opened nothing, they are 3 and 4."""
    code = """
import os, sys
from launcher.host.process_tree import ProcessTree
passed = os.pipe()
reaped = ProcessTree(pass_fds=passed)
print(reaped.pid, min(passed), flush=True)
sys.stdin.read()
"""
    command = [sys.executable, "-c", code]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdin and owner.stdout
        guard, lowest = owner.stdout.readline().split()
        assert lowest == "3"
        wait_until(lambda: len(open_files(int(guard))) == 3, TIMEOUT_S)
        owner.stdin.close()


def test_a_command_has_a_session_and_an_oom_score_of_its_own(tmp_path: Path) -> None:
    log = tmp_path / "log"
    before = os.umask(0)
    reaped = ProcessTree()
    os.umask(before)
    with closed(reaped):
        command = ["bash", "-c", "cat /proc/$$/oom_score_adj; ps -o sid= -p $$; echo $$"]
        reaped.start("shell", command, dict(os.environ), log, oom_score=500)
        wait_for_answers(reaped, 2)
        score, session, number = log.read_text().split()
        assert score == "500"
        assert session == number
        assert log.stat().st_mode & 0o777 == 0o644


def test_a_command_starts_when_the_kernel_refuses_its_oom_score(tmp_path: Path) -> None:
    with closed(ProcessTree()) as reaped:
        reaped.start("true", ["true"], dict(os.environ), tmp_path / "log", oom_score=1001)
        _, exited = wait_for_answers(reaped, 2)
        assert isinstance(exited, Exited)
        assert exited.status == 0


def test_any_process_may_trace_a_command_where_yama_restricts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PR_SET_PTRACER and PR_SET_PTRACER_ANY of prctl(2), which few kernels of servers have."""
    asked = []
    monkeypatch.setattr(reaper.LIBC, "prctl", lambda option, to: asked.append((option, to.value)))
    reaper.die_with_parent(os.getppid())()
    assert (0x59616D61, 2**64 - 1) in asked
