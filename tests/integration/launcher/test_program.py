"""One program on one host: events, output and end, as real child processes."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from launcher.host.output_tail import LONGEST_LINE, TAIL_LINES
from launcher.host.process import NOT_STARTED, REAPER_KILLED, HostProcess
from launcher.host.process_tree import start_time
from launcher.host.suspension import SUSPENDED_S, Suspension
from tests.support.assert_no_leftovers import Traces
from tests.support.host_programs import SAY, collect, start, wait_for_event
from trainer.contract.protocol.events import StepEvent, UnknownEvent


def test_events_and_output_are_handed_over(tmp_path: Path) -> None:
    batch = collect(start(tmp_path, "say(event='step', step=1); print('hello')"))
    assert batch.events == [StepEvent(step=1)]
    assert batch.lines == batch.tail == ["hello"]
    assert batch.status == 0
    assert not batch.stopped


def test_what_is_not_an_event_is_passed_over(tmp_path: Path) -> None:
    code = "os.write(int(os.environ['SLIPWAY_EVENTS_FD']), b'junk\\n[1]\\n{}\\n'); say(event='a')"
    assert collect(start(tmp_path, code)).events == [UnknownEvent(event="a")]


def test_every_byte_of_output_is_in_the_log(tmp_path: Path) -> None:
    code = r"os.write(1, b'\xff\xfe\n' + b'x' * 9000 + b'\nno newline'); os.kill(os.getpid(), 6)"
    batch = collect(start(tmp_path, code))
    log = (tmp_path / "logs" / "host-0000.log").read_bytes()
    assert log == b"\xff\xfe\n" + b"x" * 9000 + b"\nno newline"
    assert os.WTERMSIG(batch.status or 0) == signal.SIGABRT
    assert batch.lines[-1] == "no newline"
    assert max(map(len, batch.lines)) == LONGEST_LINE


def test_the_last_lines_are_kept(tmp_path: Path) -> None:
    batch = collect(start(tmp_path, "print(*range(1000), sep='\\n'); sys.exit(7)"))
    assert batch.tail == [str(i) for i in range(1000 - TAIL_LINES, 1000)]
    assert len(batch.lines) == 1000


def test_what_a_program_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    code = "import subprocess; subprocess.Popen(['sleep', '1000'], start_new_session=True)"
    began = time.monotonic()
    collect(start(tmp_path, code), timeout_s=30.0)
    assert time.monotonic() - began < 30.0


def test_killed_reaper_is_the_reason_after_its_processes_ended(
    tmp_path: Path,
) -> None:
    code = """
import subprocess
child = subprocess.Popen(["sleep", "1000"], start_new_session=True)
print("the last word of the program", flush=True)
say(event="up", child=child.pid)
os.kill(os.getppid(), 9)
"""
    batch = collect(start(tmp_path, code), timeout_s=30.0)
    assert (batch.status, batch.lost) == (None, REAPER_KILLED)
    assert start_time(batch.events[0].extra["child"]) is None


def test_a_program_that_is_stopped_is_reported_once(tmp_path: Path) -> None:
    program = start(tmp_path, "say(event='up')\nimport signal\nsignal.pause()")
    wait_for_event(program)
    os.kill(program._pid, signal.SIGSTOP)  # type: ignore[arg-type]
    (event,) = program.poll(60.0).events
    assert event.kind == "suspended"
    assert program.poll(1.5).events == []
    program.stop()
    collect(program)


def test_a_short_stop_of_a_program_is_not_reported() -> None:
    """The times are the test's own."""
    with subprocess.Popen(["sleep", "60"]) as process:
        suspension = Suspension()
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        assert not suspension.begins(process.pid, 0.0)
        assert not suspension.begins(process.pid, SUSPENDED_S - 0.1)
        process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, process.pid, os.WCONTINUED)
        assert not suspension.begins(process.pid, SUSPENDED_S + 1.0)
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        later = (SUSPENDED_S + 2.0, 2 * SUSPENDED_S + 1.9, 2 * SUSPENDED_S + 2.5)
        assert [suspension.begins(process.pid, now_s) for now_s in later] == [False, False, True]
        process.kill()


IGNORES = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
STUBBORN = {
    "ignores SIGTERM": "say(event='up')",
    "deep": """
for _ in range(20):
    if os.fork():
        os.wait()
        sys.exit()
say(event="up")
""",
    "stopped": """
if os.fork() == 0:
    say(event="up")
os.kill(os.getpid(), signal.SIGSTOP)
""",
    "in another session": """
if os.fork() == 0:
    os.setsid()
    if os.fork():
        os._exit(0)
    say(event="up")
""",
}
"""Programs whose innermost process, at least, does not end when it is asked to."""


@pytest.mark.parametrize("kind", STUBBORN)
def test_nothing_of_a_program_lives_5_s_after_its_stop(
    traces: Traces, tmp_path: Path, kind: str
) -> None:
    command = [sys.executable, "-c", f"{SAY}{IGNORES}{STUBBORN[kind]}\ntime.sleep(999)"]
    program = HostProcess(command, traces.environment, tmp_path / "log", tmp_path, grace_s=2.0)
    wait_for_event(program)
    assert traces.processes()
    program.stop()
    began = time.monotonic()
    traces.assert_nothing_left()
    assert time.monotonic() - began < 5.0
    assert collect(program, timeout_s=5.0).stopped


def test_a_program_that_the_kernel_killed_for_want_of_memory_is_known(
    tmp_path: Path, small_memory: Path
) -> None:
    join = f"open('{small_memory}/cgroup.procs', 'w').write(str(os.getpid()))"
    wait = "import time; time.sleep(1)"  # until its control group has been seen
    grow = "held = [(bytearray(5 << 20), time.sleep(0.1)) for _ in range(100)]"
    batch = collect(start(tmp_path, f"{join}\n{wait}\n{grow}"))
    assert batch.status == signal.SIGKILL
    figures = "0.06 GiB of 0.06 GiB in its control group"
    assert batch.cause == f"by the kernel, out of memory: {figures}"


def test_a_program_that_sigkill_ended_says_nothing_of_memory(tmp_path: Path) -> None:
    assert collect(start(tmp_path, "os.kill(os.getpid(), 9)")).cause == ""


def test_nested_brackets_that_no_parser_follows_are_passed_over(tmp_path: Path) -> None:
    junk = "os.write(int(os.environ['SLIPWAY_EVENTS_FD']), b'[' * 60000 + b'\\n')"
    assert collect(start(tmp_path, f"{junk}; say(event='a')")).events == [UnknownEvent(event="a")]


def test_time_since_end_is_reported_under_any_clock(tmp_path: Path) -> None:
    program = start(tmp_path, "say(event='last', monotonic_s=__import__('time').monotonic())")
    batch = collect(program)
    again, now = program.poll(0.0), time.monotonic()
    assert batch.ended_ago_s is not None and again.ended_ago_s is not None
    assert 0.0 <= batch.ended_ago_s < again.ended_ago_s
    assert again.ended_ago_s <= now - batch.events[0].extra["monotonic_s"]


@pytest.mark.parametrize("command", ["/no/such/program", "/"])
def test_a_program_that_cannot_start_says_why(tmp_path: Path, command: str) -> None:
    batch = collect(HostProcess([command], {}, tmp_path / "log", tmp_path, 0.2))
    assert "could not start" in batch.tail[-1]
    assert batch.status == NOT_STARTED


SAVES = """
import pathlib, signal, subprocess, time
child = subprocess.Popen(["sleep", "1000"])
def save(number, frame):
    time.sleep(0.5)
    pathlib.Path("saved").write_text(str(child.poll()))
    sys.exit(75)
signal.signal(signal.SIGTERM, save)
say(event="up")
time.sleep(99)
"""
"""Saves when it is asked to stop, with the help of a process that it started."""


def test_a_program_that_is_stopped_in_order_saves_in_peace(tmp_path: Path) -> None:
    """Its children live until it has ended, and no longer."""
    program = start(tmp_path, SAVES, grace_s=0.1)
    wait_for_event(program)
    program.stop(grace_s=30.0)
    batch = collect(program, timeout_s=30.0)
    assert batch.status == 75 << 8
    assert batch.stopped
    assert (tmp_path / "saved").read_text() == "None"


def test_a_stop_that_takes_too_long_ends_after_its_grace(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(15, signal.SIG_IGN); say(event='up'); time.sleep(99)"
    program = start(tmp_path, code)
    wait_for_event(program)
    began = time.monotonic()
    program.stop(grace_s=1.0)
    batch = collect(program, timeout_s=30.0)
    assert os.WTERMSIG(batch.status or 0) == signal.SIGKILL
    assert 1.0 <= time.monotonic() - began < 20.0


def test_a_stop_in_order_can_still_be_cut_short(tmp_path: Path) -> None:
    program = start(tmp_path, SAVES.replace("0.5", "99"), grace_s=0.1)
    wait_for_event(program)
    program.stop(grace_s=99.0)
    program.stop()
    collect(program, timeout_s=30.0)
    assert not (tmp_path / "saved").exists()


def test_a_stop_after_the_end_changes_nothing(tmp_path: Path) -> None:
    program = start(tmp_path, "sys.exit(3)")
    batch = collect(program)
    program.stop(grace_s=1.0)
    program.stop()
    again = program.poll(0.0)
    assert (again.status, again.over, again.tail) == (batch.status, True, batch.tail)
    assert not again.stopped
