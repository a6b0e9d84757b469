"""Signals and closed terminals: real processes that stop in order."""

import os
import pty
import select
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from launcher.core.exit_codes import INTERRUPTED

TIMEOUT_S = 60.0
STOPPING = """\
import sys, time
from launcher.core.signals import ending_on_signals, refusing_suspension
with ending_on_signals() as interrupts, refusing_suspension(), interrupts.stopping_in_order():
    print("ready", flush=True)
    while not interrupts.asked:
        time.sleep(0.01)
    print("stopping", flush=True)
    for _ in range(ROUNDS):
        print("still stopping", flush=True)
        time.sleep(0.01)
    open(DONE, "w").write(str(interrupts.signal))
"""


def program(done: object, rounds: int) -> list[str]:
    """Writes the signal that it got to a file once it has printed so many lines more."""
    code = STOPPING.replace("ROUNDS", str(rounds)).replace("DONE", repr(str(done)))
    return [sys.executable, "-c", code]


@pytest.fixture
def endless(tmp_path) -> Iterator[subprocess.Popen[str]]:
    """A program that needs hours to stop in order."""
    with subprocess.Popen(
        program(tmp_path / "done", 10**6),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_for_line(process, "ready")
        yield process
        process.kill()


def wait_for_line(process: subprocess.Popen[str], wanted: str) -> None:
    assert process.stdout
    for line in process.stdout:
        if line == wanted + "\n":
            return
    raise AssertionError(f"it ended with {process.wait()}, without {wanted!r}")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_second_signal_ends_a_command_that_stops_in_order_at_once(
    endless: subprocess.Popen[str], number: int
) -> None:
    endless.send_signal(signal.SIGINT)
    wait_for_line(endless, "stopping")
    assert endless.poll() is None
    endless.send_signal(number)
    assert endless.wait(TIMEOUT_S) == INTERRUPTED


def test_a_hangup_after_ctrl_c_does_not_end_a_command_that_stops_in_order(
    endless: subprocess.Popen[str],
) -> None:
    endless.send_signal(signal.SIGINT)
    wait_for_line(endless, "stopping")
    endless.send_signal(signal.SIGHUP)
    for _ in range(10):
        wait_for_line(endless, "still stopping")
    assert endless.poll() is None


def test_ctrl_z_does_not_suspend_and_prints_why(endless: subprocess.Popen[str]) -> None:
    endless.send_signal(signal.SIGTSTP)
    assert endless.stderr
    assert "--detach" in endless.stderr.readline()
    endless.send_signal(signal.SIGINT)
    wait_for_line(endless, "stopping")


def test_output_from_the_background_does_not_suspend(endless: subprocess.Popen[str]) -> None:
    """A terminal with `tostop` sends SIGTTOU."""
    endless.send_signal(signal.SIGTTOU)
    endless.send_signal(signal.SIGINT)
    wait_for_line(endless, "stopping")


def test_a_closed_terminal_stops_a_command_in_order(tmp_path) -> None:
    """What it prints after the hangup does not fail."""
    master, terminal = pty.openpty()
    command = ["setsid", "--ctty", "--wait", *program(tmp_path / "done", 10)]
    process = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal)
    os.close(terminal)
    seen = b""
    while b"ready" not in seen:
        assert select.select([master], [], [], TIMEOUT_S)[0]
        seen += os.read(master, 4096)
    os.close(master)
    assert process.wait(TIMEOUT_S) == 0
    assert (tmp_path / "done").read_text() == str(signal.SIGHUP.value)
