"""Notices on their way to servers that fail, hang and recover, and past processes that die."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.notify import delivery, sender
from launcher.notify.notifier import Notifier
from tests.support.notices import lines, notice_of, outcomes
from tests.support.processes import wait_until
from tests.support.webhooks import Webhooks, webhook_server
from trainer.contract.config.notify import NOTIFY_EVENTS, CommandTarget, UrlTarget

CHILD = """\
import sys, time
from pathlib import Path
from launcher.notify.notifier import Notifier
from tests.support.notices import notice_of
from trainer.contract.config.notify import UrlTarget
folder = Path(sys.argv[1])
notifier = Notifier(folder, [UrlTarget(url=sys.argv[2])])
for event in sys.argv[3:]:
    notifier.send(notice_of(event, folder))
print("sent", flush=True)
time.sleep(1000)
"""
"""Queues events of a run and lives on."""


@pytest.fixture
def hooks() -> Iterator[Webhooks]:
    with webhook_server() as hooks:
        yield hooks


@pytest.fixture(autouse=True)
def _short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "ANSWER_TIMEOUT_S", 0.3)
    monkeypatch.setattr(sender, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(sender, "LONGEST_PAUSE_S", 0.2)


def notifier_of(folder: Path, *targets: UrlTarget | CommandTarget) -> Notifier:
    (folder / "logs").mkdir(exist_ok=True)
    return Notifier(folder, targets)


def test_a_server_that_fails_hangs_and_recovers_gets_each_event_once(
    hooks: Webhooks, tmp_path: Path
) -> None:
    notifier = notifier_of(tmp_path, UrlTarget(url=hooks.url))
    hooks.status = 500
    notifier.send(notice_of("resumed"))
    wait_until(lambda: len(hooks.received) >= 3)
    hooks.hangs = True
    notifier.send(notice_of("hang"))
    wait_until(lambda: [one.status for one in hooks.received].count(None) >= 3)
    hooks.hangs, hooks.status = False, 200
    notifier.send(notice_of("finished"))
    wait_until(lambda: len(hooks.delivered) == 3)
    assert notifier.close() == []
    assert hooks.events() == ["resumed", "hang", "finished"]
    assert outcomes(tmp_path) == [(event, "sent") for event in hooks.events()]
    ids = {one.json["id"] for one in hooks.received if one.json["event"] == "resumed"}
    assert len(ids) == 1


def test_what_is_not_delivered_by_the_deadline_is_logged_as_given_up(
    hooks: Webhooks, tmp_path: Path
) -> None:
    hooks.hangs = True
    notifier = notifier_of(tmp_path, UrlTarget(url=f"{hooks.url}/secret-path"))
    for event in ("resumed", "finished"):
        notifier.send(notice_of(event))
    began = time.monotonic()
    texts = notifier.close(timeout_s=1.0)
    assert time.monotonic() - began < 3
    assert sorted(outcomes(tmp_path)) == [("finished", "given_up"), ("resumed", "given_up")]
    assert len(texts) == 2 and not any("secret-path" in text for text in texts)
    reasons = [line["reason"] for line in lines(tmp_path) if line["status"] == "given_up"]
    assert "not delivered within 1 s of the end; no answer within 0 s" in reasons


def test_the_event_of_the_end_is_tried_before_older_ones(hooks: Webhooks, tmp_path: Path) -> None:
    hooks.status = 500
    notifier = notifier_of(tmp_path, UrlTarget(url=hooks.url))
    notifier.send(notice_of("hang"))
    wait_until(lambda: hooks.received)
    notifier.send(notice_of("straggler"))
    notifier.send(notice_of("finished"))
    before = len(hooks.received)
    notifier.close(timeout_s=0.3)
    assert "finished" in {one.json["event"] for one in hooks.received[before:][:2]}


def test_an_error_that_would_come_again_is_given_up_at_once(
    hooks: Webhooks, tmp_path: Path
) -> None:
    hooks.status = 404
    notifier = notifier_of(tmp_path, UrlTarget(url=hooks.url))
    notifier.send(notice_of("failed"))
    wait_until(lambda: outcomes(tmp_path))
    assert len(hooks.received) == 1
    assert outcomes(tmp_path) == [("failed", "given_up")]
    notifier.close()


def test_an_old_notice_is_given_up(
    hooks: Webhooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sender, "GIVE_UP_AFTER_S", 0.5)
    hooks.status = 500
    notifier = notifier_of(tmp_path, UrlTarget(url=hooks.url))
    notifier.send(notice_of("hang"))
    wait_until(lambda: outcomes(tmp_path))
    assert outcomes(tmp_path) == [("hang", "given_up")]
    assert len(hooks.received) > 2
    notifier.close()


def test_sending_never_waits_for_a_server(hooks: Webhooks, tmp_path: Path) -> None:
    hooks.hangs = True
    notifier = notifier_of(tmp_path, UrlTarget(url=hooks.url))
    notices = [notice_of("straggler") for _ in range(200)]
    began = time.monotonic()
    for notice in notices:
        notifier.send(notice)
    assert time.monotonic() - began < 0.5
    notifier.close(timeout_s=0.0)
    assert len(outcomes(tmp_path)) == 200


def test_a_target_that_hangs_does_not_delay_another(hooks: Webhooks, tmp_path: Path) -> None:
    hooks.hangs = True
    with webhook_server() as healthy:
        notifier = notifier_of(tmp_path, UrlTarget(url=hooks.url), UrlTarget(url=healthy.url))
        for event in NOTIFY_EVENTS:
            notifier.send(notice_of(event))
        wait_until(lambda: len(healthy.delivered) == len(NOTIFY_EVENTS), timeout_s=5.0)
        notifier.close(timeout_s=0.0)


def test_a_target_gets_only_its_events(hooks: Webhooks, tmp_path: Path) -> None:
    notifier = notifier_of(tmp_path, UrlTarget(url=hooks.url, events=("failed", "lost")))
    for event in NOTIFY_EVENTS:
        notifier.send(notice_of(event))
    notifier.close()
    assert hooks.events() == ["failed", "lost"]


def start_child(folder: Path, url: str, *events: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, str(folder), url, *events]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert child.stdout and child.stdout.readline() == "sent\n"
    return child


def kill(child: subprocess.Popen[str]) -> None:
    child.send_signal(signal.SIGKILL)
    child.communicate()


def test_what_a_killed_process_has_left_is_delivered_once_by_the_next(
    hooks: Webhooks, tmp_path: Path
) -> None:
    child = start_child(tmp_path, hooks.url, "resumed")
    wait_until(lambda: outcomes(tmp_path) == [("resumed", "sent")])
    kill(child)
    hooks.hangs = True
    child = start_child(tmp_path, hooks.url, "hang", "straggler")
    wait_until(lambda: len(hooks.received) == 2)
    kill(child)
    with (tmp_path / "notifications.jsonl").open("a") as file:
        file.write('{"status": "sent", "id": "cut o')
    hooks.hangs = False
    notifier = notifier_of(tmp_path, UrlTarget(url=hooks.url))
    notifier.send_pending()
    assert notifier.close() == []
    assert sorted(hooks.events()) == ["hang", "resumed", "straggler"]


def test_a_process_leaves_alone_what_another_one_sends(hooks: Webhooks, tmp_path: Path) -> None:
    hooks.hangs = True
    child = start_child(tmp_path, hooks.url, "hang")
    try:
        wait_until(lambda: hooks.received)
        hooks.hangs, before = False, len(hooks.received)
        notifier = notifier_of(tmp_path, UrlTarget(url=hooks.url))
        assert not notifier.is_owner
        notifier.send_pending()
        notifier.close()
        assert len(hooks.received) == before
    finally:
        kill(child)


def test_a_target_without_its_secret_is_left_to_a_process_that_has_it(
    hooks: Webhooks, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = UrlTarget(url_secret="SLIPWAY_TEST_HOOK")
    first = notifier_of(tmp_path, target)
    first.send(notice_of("lost"))
    first.close()
    assert outcomes(tmp_path) == []
    monkeypatch.setenv("SLIPWAY_TEST_HOOK", hooks.url)
    second = notifier_of(tmp_path, target)
    second.send_pending()
    second.close()
    assert hooks.events() == ["lost"]
