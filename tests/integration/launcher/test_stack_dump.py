"""The stacks of programs, of those that answer and of those that cannot."""

import os
import signal
import time
from pathlib import Path

from launcher.host.process import HostProcess
from tests.support.host_programs import collect, start
from tests.support.processes import wait_until

WAITS = """
import threading, time
def waits_in_a_thread():
    say(event="up", pid=os.getpid())
    time.sleep(999)
def waits():
    threading.Thread(target=waits_in_a_thread, daemon=True).start()
    time.sleep(999)
"""
ANSWERS = "import faulthandler, signal; faulthandler.register(signal.SIGUSR1, all_threads=True)\n"
NOISE = (
    "import threading; threading.Thread(target=lambda: [print(i) for i in range(10**9)]).start()"
)


def pid_of(program: HostProcess) -> int:
    """Once it is up."""
    while not (events := program.poll(1.0).events):
        pass
    return events[0].extra["pid"]


def log_of(folder: Path) -> str:
    return (folder / "logs" / "host-0000.log").read_text()


def end(program: HostProcess) -> None:
    program.stop()
    collect(program, timeout_s=30.0)


def test_a_program_that_answers_prints_the_stacks_itself(tmp_path: Path) -> None:
    program = start(tmp_path, ANSWERS + WAITS + "waits()", grace_s=0.1)
    pid_of(program)
    text = program.stacks(10.0)
    assert text.startswith("Thread 0x") and "Current thread 0x" in text
    assert "in waits_in_a_thread" in text and "in waits\n" in text
    assert "py-spy" not in text
    assert all(line in log_of(tmp_path) for line in text.splitlines())
    assert program.poll(0.0).status is None
    end(program)


def test_what_a_program_prints_beside_its_stacks_is_left_out(tmp_path: Path) -> None:
    program = start(tmp_path, f"{ANSWERS}{NOISE}\n{WAITS}waits()", grace_s=0.1)
    pid_of(program)
    lines = program.stacks(10.0).splitlines()
    end(program)
    assert lines, "some of them: what is printed in the middle of a line tears it"
    assert not [line for line in lines if line.strip().isdecimal()], lines


def test_a_program_without_a_handler_is_read_from_outside(tmp_path: Path) -> None:
    """SIGUSR1 would have killed it."""
    program = start(tmp_path, WAITS + "waits()", grace_s=0.1)
    pid_of(program)
    text = program.stacks(20.0)
    assert "waits_in_a_thread (<string>" in text and "waits (<string>" in text
    assert text in log_of(tmp_path)
    assert program.poll(0.0).status is None
    end(program)


def test_a_stopped_program_is_read_from_outside_and_stays_stopped(tmp_path: Path) -> None:
    program = start(tmp_path, ANSWERS + WAITS + "waits()", grace_s=0.1)
    pid = pid_of(program)
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: state(pid) == "T", 10.0)
    text = program.stacks(20.0)
    assert "state T (stopped)" in text and "waits (<string>" in text
    assert state(pid) == "T"
    end(program)


def test_every_process_of_the_tree_is_read(tmp_path: Path) -> None:
    """Also those that are not Python: what they are is told."""
    code = """
import subprocess
child = "import os; os.write(1, b'child is up\\\\n'); input()"
subprocess.Popen([sys.executable, "-c", child], stdin=subprocess.PIPE)
subprocess.Popen(["sleep", "999"])
"""
    program = start(tmp_path, code + WAITS + "waits()", grace_s=0.1)
    pid_of(program)
    wait_until(lambda: "child is up" in log_of(tmp_path), 30.0)
    text = program.stacks(20.0)
    assert text.count("[py-spy: process") == 3
    assert "<module> (<string>:1)" in text
    assert "sleep 999" in text
    end(program)


def test_a_handler_that_prints_nothing_takes_no_longer_than_is_given(tmp_path: Path) -> None:
    code = "import signal; signal.signal(signal.SIGUSR1, lambda *_: None)\n"
    program = start(tmp_path, code + WAITS + "waits()", grace_s=0.1)
    pid_of(program)
    began = time.monotonic()
    assert "waits (<string>" in program.stacks(6.0)
    assert time.monotonic() - began < 8.0
    end(program)


def test_a_program_that_is_over_has_no_stacks(tmp_path: Path) -> None:
    program = start(tmp_path, "pass")
    collect(program)
    assert program.stacks(1.0) == ""


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
