"""Requests to the driver of a run through files: answered, withdrawn, refused; never a hang."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from launcher.core.errors import HostError
from launcher.requests.client import NotLiveError, ask
from launcher.requests.files import REQUESTS
from launcher.requests.inbox import Inbox, Received
from launcher.requests.messages import (
    Done,
    Failed,
    HostsRequest,
    ProcessStacks,
    Request,
    StacksRequest,
    Working,
)
from tests.support.processes import wait_until

ROOT = Path(__file__).parents[3]
ASKS = """\
import sys
from pathlib import Path
from launcher.requests.client import ask
from launcher.requests.messages import StacksRequest
print(list(ask(Path(sys.argv[1]), StacksRequest(), lambda: True, 60)))
"""


@pytest.fixture
def inbox(tmp_path: Path) -> Iterator[Inbox]:
    with Inbox(lambda: tmp_path) as inbox:
        yield inbox


def taken(inbox: Inbox) -> Received:
    """The next request."""
    found: list[Received] = []
    wait_until(lambda: found.extend(inbox.take()) or found)
    (received,) = found
    return received


def serve(inbox: Inbox, respond: Callable[[Received], None]) -> threading.Thread:
    thread = threading.Thread(target=lambda: respond(taken(inbox)))
    thread.start()
    return thread


def left(run_dir: Path) -> list[str]:
    return [path.name for path in (run_dir / REQUESTS).iterdir()]


def test_answers_arrive_in_order_and_nothing_is_left(tmp_path: Path, inbox: Inbox) -> None:
    answers = [ProcessStacks(process, "text\n" * process) for process in range(200)]

    def respond(received: Received) -> None:
        for answer in [*answers, Done()]:
            received.answer(answer)

    thread = serve(inbox, respond)
    assert list(ask(tmp_path, StacksRequest(), lambda: True)) == answers
    thread.join()
    assert left(tmp_path) == []


def test_reason_of_a_refusal_is_the_error(tmp_path: Path, inbox: Inbox) -> None:
    thread = serve(inbox, lambda received: received.answer(Failed("the attempt has ended")))
    with pytest.raises(HostError, match="the attempt has ended"):
        list(ask(tmp_path, StacksRequest(), lambda: True))
    thread.join()


def test_silent_driver_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(HostError, match="no answer from the process that drives"):
        list(ask(tmp_path, StacksRequest(), lambda: True, timeout_s=0.5))
    assert time.monotonic() - began < 10
    assert left(tmp_path) == []


def test_a_request_that_needs_no_program_is_answered_at_once(tmp_path: Path) -> None:
    given: list[int] = []

    def at_once(request: Request) -> Done | None:
        if isinstance(request, HostsRequest):
            given.append(request.hosts)
            return Done()
        return None

    with Inbox(lambda: tmp_path, at_once) as inbox:
        assert list(ask(tmp_path, HostsRequest(3), lambda: True, timeout_s=20)) == []
        assert (given, inbox.take()) == ([3], [])
        thread = serve(inbox, lambda received: received.answer(Done()))
        assert list(ask(tmp_path, StacksRequest(), lambda: True)) == []
        thread.join()


def test_each_answer_extends_the_wait(tmp_path: Path, inbox: Inbox) -> None:
    def respond(received: Received) -> None:
        for _ in range(6):
            time.sleep(0.4)
            received.answer(Working())
        received.answer(Done())

    thread = serve(inbox, respond)
    assert len(list(ask(tmp_path, StacksRequest(), lambda: True, timeout_s=1.5))) == 6
    thread.join()


def test_run_that_ends_meanwhile_is_an_error(tmp_path: Path, inbox: Inbox) -> None:
    is_alive = threading.Event()
    is_alive.set()
    thread = serve(inbox, lambda _: is_alive.clear())
    with pytest.raises(NotLiveError, match="has ended meanwhile"):
        list(ask(tmp_path, StacksRequest(), is_alive.is_set))
    thread.join()


def test_run_that_is_not_alive_is_not_asked(tmp_path: Path) -> None:
    with pytest.raises(NotLiveError, match="is not running"):
        list(ask(tmp_path, StacksRequest(), lambda: False))
    assert left(tmp_path) == []


def test_command_that_goes_away_withdraws_its_request(tmp_path: Path, inbox: Inbox) -> None:
    with closing(ask(tmp_path, StacksRequest(), lambda: True)) as answers:
        thread = serve(inbox, lambda received: received.answer(Working()))
        assert next(answers) == Working()
        thread.join()
    assert left(tmp_path) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_killed_command_withdraws_its_request(tmp_path: Path, inbox: Inbox, number: int) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", ASKS, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) as asking:
        received = taken(inbox)
        assert not received.is_withdrawn
        asking.send_signal(number)
    wait_until(lambda: received.is_withdrawn)
    wait_until(lambda: not left(tmp_path))


def test_request_of_another_version_is_refused(
    tmp_path: Path, inbox: Inbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(StacksRequest, "kind", "of_the_future")
    with pytest.raises(HostError, match="another version"):
        list(ask(tmp_path, StacksRequest(), lambda: True))
    assert inbox.take() == []


def test_damaged_request_does_not_stop_the_inbox(tmp_path: Path, inbox: Inbox) -> None:
    damaged = tmp_path / REQUESTS / "damaged"
    damaged.mkdir()
    (damaged / "request.json").write_text(json.dumps({"message": "stacks"})[:9])
    thread = serve(inbox, lambda received: received.answer(Done()))
    assert list(ask(tmp_path, StacksRequest(), lambda: True)) == []
    thread.join()


def test_folder_of_requests_is_only_for_its_user(tmp_path: Path, inbox: Inbox) -> None:
    assert (tmp_path / REQUESTS).stat().st_mode & 0o077 == 0
