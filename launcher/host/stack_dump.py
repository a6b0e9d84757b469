"""Logs and returns the stacks of every thread of a program that may be stuck.

A program with a SIGUSR1 handler prints them itself, as the trainer does (trainer/__main__.py);
without one, the signal would end it. If that yields nothing, for example because the process is
stopped, py-spy reads the stacks of every process of the tree from outside.
"""

import os
import re
import shutil
import signal
import subprocess
import sysconfig
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

from launcher.host.log_reader import LogFile
from launcher.host.reaper import descendants

ANSWER_S, POLL_INTERVAL_S = 2.0, 0.02
QUIET_S = 0.5
"""Seconds without more output after which an answer is complete. The main thread's stack, which
shows what the program does, comes last, and a busy machine may halt the program in between."""
ATTEMPTS = 3
"""Attempts of py-spy. It does not halt the process that it reads (a stopped one could not be
halted), and what it reads may change meanwhile."""
HEADER = re.compile(rb"(Current thread|Thread) 0x[0-9a-f]+ ")
FRAME = re.compile(rb'  (File "[^"]*", line \d+ in |\.\.\.$|<no Python frame>|Garbage-collecting)')


def dump_stacks(pid: int, ask: Callable[[], None], log: Path, wait_s: float) -> str:
    """Returns and logs the stacks of process `pid` within `wait_s`; `ask` sends it SIGUSR1."""
    deadline = time.monotonic() + wait_s
    will_answer = handles(pid, signal.SIGUSR1)
    text = _answer(ask, log, min(ANSWER_S, wait_s / 2)) if will_answer else ""
    if not text:
        text = "\n".join(_read(each, deadline) for each in [pid, *descendants(pid)])
        _append(log, text)
    return text


def handles(pid: int, number: signal.Signals) -> bool:
    """Returns whether the process handles a signal, and runs at all."""
    status = _status(pid)
    handled = int(status.get("SigCgt", "0"), 16) >> (number - 1) & 1
    return bool(handled) and status["State"][0] not in "TtZX"


def _answer(ask: Callable[[], None], log: Path, wait_s: float) -> str:
    """Returns the stacks that the program prints, without its other output in between."""
    with closing(LogFile(log, tail=0)) as reader:
        ask()
        stacks: list[bytes] = []
        rest, now = b"", time.monotonic()
        deadline, ends_at = now + wait_s, now + wait_s
        while (now := time.monotonic()) < min(deadline, ends_at):
            if not (chunk := reader.read()):
                time.sleep(POLL_INTERVAL_S)
            *lines, rest = (rest + chunk).split(b"\n")
            if found := _stack_lines(lines):
                stacks += found
                ends_at = now + QUIET_S
    return b"\n".join(stacks).decode(errors="replace").lstrip("\n")


def _stack_lines(lines: list[bytes]) -> list[bytes]:
    """Returns the stack lines of faulthandler, with its blank line before each thread.

    It prints a line in parts: output of other threads at that moment may come between them.
    """
    found = []
    for line in lines:
        if header := HEADER.search(line):
            found += [b"", line[header.start() :]]
        elif FRAME.match(line):
            found.append(line)
    return found


def _read(pid: int, deadline: float) -> str:
    """Returns the stacks of one process from py-spy, or why there are none."""
    about = f"[py-spy: process {pid}, state {_status(pid).get('State', 'gone')}]"
    for _ in range(ATTEMPTS):
        is_read, text = _py_spy(pid, deadline - time.monotonic())
        if is_read:
            break
    return f"{about}\n{text}\n"


def _py_spy(pid: int, timeout_s: float) -> tuple[bool, str]:
    """Returns whether py-spy could read the process, and its output or error."""
    path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")])
    command = [shutil.which("py-spy", path=path) or "py-spy", "dump", "--nonblocking"]
    command += ["--full-filenames", "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=max(0.0, timeout_s))
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    if done.returncode == 0:
        return True, done.stdout.decode(errors="replace").rstrip()
    reason, _, _ = done.stderr.decode(errors="replace").partition("\n\nStack backtrace")
    return False, f"{_command(pid)}\n{reason}"


def _status(pid: int) -> dict[str, str]:
    """Returns the fields of /proc/PID/status; empty when the process is gone."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _command(pid: int) -> str:
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return b" ".join(arguments).decode(errors="replace").strip()


def _append(log: Path, text: str) -> None:
    try:
        with log.open("a", encoding="utf-8") as file:
            file.write(f"{text}\n")
    except OSError:
        pass  # a full disk: the caller has the text
