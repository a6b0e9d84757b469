"""Processes that are started early: they check the hosts, or wait for an attempt."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from launcher.gang.agent_calls import GangError
from launcher.gang.gang import Gang
from launcher.gang.host_checks import CheckError
from tests.support.gang_programs import Preparing, Script, Seen

CHECK = "say(event='checked', versions={'jax': '1'}, host_name=str(os.getpid()))"


def test_the_processes_that_checked_like_hosts_run_the_program(crew: Gang, seen: Seen) -> None:
    program = Script("say(event='here', pid=str(os.getpid()))", CHECK)
    checked = {process: event.host_name for process, event in crew.check(program).items()}
    assert sorted(checked) == [0, 1]
    assert crew.run(program).ok
    here = [event for event in seen.events if event["event"] == "here"]
    assert {event["process"]: event["pid"] for event in here} == checked


def test_they_run_it_in_the_environment_of_the_start(crew: Gang, seen: Seen) -> None:
    names = ("JAX_COORDINATOR_ADDRESS", "ATTEMPT")
    program = Script(f"say(event='here', now=[os.environ[name] for name in {names}])", CHECK)
    crew.check(program)
    program.environment_of_all = {"ATTEMPT": "2"}
    assert crew.run(program).ok
    (first, attempt), (second, _) = [e["now"] for e in seen.events if e["event"] == "here"]
    assert first == second and attempt == "2"


def test_a_process_that_died_before_the_start_is_a_failure(crew: Gang) -> None:
    program = Script("", CHECK)
    os.kill(int(crew.check(program)[0].host_name or 0), signal.SIGKILL)
    assert "host-0000 was killed by SIGKILL" in crew.run(program).reason


@pytest.fixture
def prepared(crew: Gang, seen: Seen, tmp_path: Path) -> tuple[Script, list[str]]:
    """A program whose standby processes wait for its second start, and their ids by process."""
    paths = [tmp_path / f"standby-{process}" for process in range(2)]
    wait = f"while not all(map(os.path.exists, {[str(path) for path in paths]})): time.sleep(0.02)"
    standby = (
        "print('from before the start', flush=True); say(event='early')\n"
        f"path = {str(tmp_path / 'standby-')!r} + str(process)\n"
        "open(path + '.new', 'w').write(str(os.getpid())); os.rename(path + '.new', path)"
    )
    program = Script(f"{wait}\nsay(event='here', pid=str(os.getpid()))", standby=standby)
    assert crew.run(program, monitor=Preparing()).ok
    seen.events.clear()
    seen.lines.clear()
    return program, [path.read_text() for path in paths]


def test_standby_processes_run_the_next_attempt(
    crew: Gang, seen: Seen, prepared: tuple[Script, list[str]]
) -> None:
    program, waiting = prepared
    assert crew.run(program).ok
    assert {e["process"]: e["pid"] for e in seen.events} == dict(enumerate(waiting))
    assert sorted(seen.lines) == [(process, "from before the start") for process in range(2)]


def test_a_standby_process_that_has_died_is_replaced(
    crew: Gang, seen: Seen, prepared: tuple[Script, list[str]]
) -> None:
    program, waiting = prepared
    dead = psutil.Process(int(waiting[0]))
    dead.kill()
    dead.wait(10.0)
    assert crew.run(program).ok
    pids = {e["process"]: e["pid"] for e in seen.events}
    assert pids[0] != waiting[0] and pids[1] == waiting[1]


def test_the_host_that_differs_is_named(crew: Gang) -> None:
    check = "say(event='checked', versions={'jax': ['0.10.2', '9.9.9'][process]})"
    with pytest.raises(GangError, match=r"versions\.jax differs: host-0001 has 9\.9\.9"):
        crew.check(Script("", check=check))


def test_a_host_that_cannot_serve_the_job_says_why(crew: Gang) -> None:
    check = "process and (say(event='error', message='no such file: /data'), sys.exit(65))"
    with pytest.raises(CheckError, match="host-0001: no such file: /data") as error:
        crew.check(Script("", check=check))
    assert error.value.outcome.code == 65
