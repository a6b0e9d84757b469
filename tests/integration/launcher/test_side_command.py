"""A command beside a host's program: its outputs, its end, and that of all that it started."""

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from launcher.host.side_command import CommandUpdate, SideCommand
from tests.support.processes import wait_until

ENVIRONMENT = {"PATH": os.environ["PATH"], "OF_THE_RUN": "yes"}
OWNER = """\
import sys, time
from pathlib import Path
from launcher.host.side_command import SideCommand
command = SideCommand(["sh", "-c", sys.argv[1]], {"PATH": "/usr/bin:/bin"}, Path("."))
time.sleep(600)
"""


def start(*command: str, cwd: Path = Path()) -> SideCommand:
    return SideCommand(command, ENVIRONMENT, cwd)


def rest_of(command: SideCommand) -> CommandUpdate:
    """All of the output together, and the exit code."""
    stdout = stderr = b""
    ends_at = time.monotonic() + 60
    while time.monotonic() < ends_at:
        update = command.poll(0.5)
        stdout, stderr = stdout + update.stdout, stderr + update.stderr
        if update.exit_code is not None:
            return CommandUpdate(stdout, stderr, update.exit_code)
    raise TimeoutError(f"{stdout!r}, {stderr!r}")


def is_gone(pid_file: Path) -> bool:
    return not psutil.pid_exists(int(pid_file.read_text()))


def test_outputs_are_kept_apart_and_the_exit_code_is_passed_on() -> None:
    found = rest_of(start("sh", "-c", "echo out; echo err >&2; exit 7"))
    assert found == CommandUpdate(b"out\n", b"err\n", 7)


def test_environment_and_folder_are_those_given(tmp_path: Path) -> None:
    found = rest_of(start("sh", "-c", "echo $OF_THE_RUN; pwd", cwd=tmp_path))
    assert found.stdout.decode() == f"yes\n{tmp_path}\n"


def test_arguments_arrive_as_they_are() -> None:
    found = rest_of(start("printf", "%s|", "a b", "*", "$HOME", "'\"", "ü\n"))
    assert found.stdout.decode() == "a b|*|$HOME|'\"|ü\n|"


def test_output_arrives_while_the_command_runs() -> None:
    command = start("sh", "-c", "echo early; sleep 600")
    update = command.poll(30)
    assert (update.stdout, update.exit_code) == (b"early\n", None)
    command.end()
    assert rest_of(command) == CommandUpdate(exit_code=128 + 15)


def test_large_binary_output_is_complete() -> None:
    found = rest_of(
        start(
            sys.executable, "-c", "import sys; sys.stdout.buffer.write(bytes(range(256)) * 40000)"
        )
    )
    assert found.stdout == bytes(range(256)) * 40000


@pytest.mark.parametrize(("name", "code"), [("no-such-command", 127), ("/", 126)])
def test_command_that_cannot_start_has_a_shells_exit_code(name: str, code: int) -> None:
    found = rest_of(start(name))
    assert found.exit_code == code
    assert found.stderr.decode().startswith(f"{name}: ")


def test_missing_folder_is_the_reason() -> None:
    found = rest_of(start("true", cwd=Path("/absent/folder")))
    assert found.exit_code == 126
    assert b"/absent/folder" in found.stderr


def test_command_ends_with_all_that_it_started(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    command = start("sh", "-c", f"trap '' TERM; sleep 600 & echo $! >{pid_file}; wait; sleep 600")
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
    command.end()
    assert rest_of(command).exit_code is not None
    assert is_gone(pid_file)


def test_what_a_command_leaves_ends_with_it(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    found = rest_of(start("sh", "-c", f"setsid sleep 600 & echo $! >{pid_file}; exit 3"))
    assert found.exit_code == 3
    assert is_gone(pid_file)


def test_command_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    root = str(Path(__file__).parents[3])
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, f"echo $$ >{pid_file}; sleep 600"],
        env={**os.environ, "PYTHONPATH": root},
    )
    wait_until(lambda: pid_file.exists() and pid_file.read_text().strip())
    owner.kill()
    owner.wait()
    wait_until(lambda: is_gone(pid_file))
