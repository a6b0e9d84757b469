"""Process trees that end with their owner, whatever ends it."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.host.processes import Reaped, ReaperError, describe_status, start_time
from tests.leftovers import Traces, wait_until

OWNER = """
import os, sys, time
from pathlib import Path
from launcher.host.processes import Reaped
folder = Path(sys.argv[1])
reaped = Reaped(folders=[folder])
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
    traces.remove()


def start_owner(traces: Traces, *more: str, code: str = OWNER) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, str(traces.temporary / "folder"), *more]
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


def test_a_detached_tree_ends_when_its_reaper_is_asked_to(traces: Traces) -> None:
    with start_owner(traces, "detach") as owner:
        output, _ = owner.communicate()
        assert traces.processes()
        os.kill(int(output), signal.SIGTERM)
        traces.assert_nothing_left()


def test_cleanup_commands_run_at_the_end(tmp_path: Path) -> None:
    made, gone = tmp_path / "made", tmp_path / "gone"
    reaped = Reaped(setup=[["touch", str(made)]], cleanup=[["touch", str(gone)]])
    assert made.exists()
    assert not gone.exists()
    assert reaped.close()
    assert gone.exists()


def test_a_failed_setup_is_undone_and_told(tmp_path: Path) -> None:
    folder, gone = tmp_path / "folder", tmp_path / "gone"
    with pytest.raises(ReaperError, match="No such file"):
        Reaped([folder], setup=[["ls", str(tmp_path / "no")]], cleanup=[["touch", str(gone)]])
    assert gone.exists()
    assert not folder.exists()


def test_a_command_that_does_not_exist_is_told(tmp_path: Path) -> None:
    reaped = Reaped()
    reaped.start("nothing", [str(tmp_path / "nothing")], {}, tmp_path / "log")
    answers: list[dict] = []
    wait_until(lambda: answers.extend(reaped.answers(1.0) or [{"over": True}]) or answers)
    assert "nothing" in answers[0]["failed"]
    assert reaped.close()


def test_exit_statuses_are_told_in_words(tmp_path: Path) -> None:
    reaped = Reaped()
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
