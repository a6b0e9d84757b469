"""One try to deliver a notice, to real servers and commands."""

import json
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from launcher.notify import delivery
from launcher.notify.delivery import DeliveryError, deliver
from tests.support.notices import notice_of
from tests.support.smtp_server import Mailbox, smtp_server
from tests.support.webhooks import Webhooks, webhook_server
from trainer.contract.config.notify import (
    AnyTarget,
    CommandTarget,
    EmailTarget,
    NotifyEvent,
    UrlTarget,
)

SECRET = "s3cret-value"


@pytest.fixture
def hooks() -> Iterator[Webhooks]:
    with webhook_server() as hooks:
        yield hooks


@pytest.fixture
def mailbox() -> Iterator[Mailbox]:
    with smtp_server() as mailbox:
        yield mailbox


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs").mkdir()
    return tmp_path


def send(target: AnyTarget, folder: Path, event: NotifyEvent = "failed") -> None:
    deliver(target, notice_of(event, folder), folder, lambda: False)


def failure(target: AnyTarget, folder: Path) -> tuple[str, bool]:
    with pytest.raises(DeliveryError) as error:
        send(target, folder)
    return str(error.value), error.value.is_final


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def mail_target(port: int, **fields: str) -> EmailTarget:
    values = {"email": "me@x.org", "smtp": f"localhost:{port}", "security": "none", **fields}
    return EmailTarget.model_validate(values)


def test_a_url_receives_the_notice_as_json_with_an_id(hooks: Webhooks, folder: Path) -> None:
    send(UrlTarget(url=f"{hooks.url}/a?b=c"), folder)
    (received,) = hooks.received
    assert (received.path, received.headers["Content-Type"]) == ("/a?b=c", "application/json")
    assert received.json["event"] == "failed"
    assert received.json["title"] == "small has failed"
    assert received.headers["Idempotency-Key"] == received.json["id"]


def test_a_url_and_a_token_come_from_the_environment(
    hooks: Webhooks, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOOK", f"{hooks.url}/{SECRET}")
    monkeypatch.setenv("TOKEN", "t0ken")
    send(UrlTarget(url_secret="HOOK", token_secret="TOKEN", format="slack"), folder)
    assert hooks.received[0].path == f"/{SECRET}"
    assert hooks.received[0].headers["Authorization"] == "Bearer t0ken"


@pytest.mark.parametrize(
    ("status", "is_final"), [(500, False), (503, False), (429, False), (404, True), (401, True)]
)
def test_an_error_of_the_server_may_pass_and_one_of_the_request_does_not(
    hooks: Webhooks, folder: Path, status: int, is_final: bool
) -> None:
    hooks.status = status
    assert failure(UrlTarget(url=hooks.url), folder) == (f"HTTP status {status}", is_final)


def test_a_redirect_is_an_error_and_is_not_followed(hooks: Webhooks, folder: Path) -> None:
    hooks.status = 302
    assert failure(UrlTarget(url=hooks.url), folder) == ("HTTP status 302", True)


def test_a_server_that_hangs_is_given_up_after_the_deadline(
    hooks: Webhooks, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "ANSWER_TIMEOUT_S", 0.3)
    hooks.hangs = True
    began = time.monotonic()
    assert failure(UrlTarget(url=hooks.url), folder) == ("no answer within 0 s", False)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("path", [SECRET, "a b", "\x01"])
def test_no_failure_contains_a_secret_url(
    folder: Path, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    monkeypatch.setenv("HOOK", f"http://127.0.0.1:{free_port()}/{path}")
    reason, _ = failure(UrlTarget(url_secret="HOOK"), folder)
    assert path not in reason and "127.0.0.1" not in reason


def test_a_secret_that_is_not_set_is_final(folder: Path) -> None:
    reason, is_final = failure(UrlTarget(url_secret="SLIPWAY_TEST_UNSET"), folder)
    assert "SLIPWAY_TEST_UNSET is not set" in reason and is_final


def test_an_address_receives_a_mail(mailbox: Mailbox, folder: Path) -> None:
    send(mail_target(mailbox.port, sender="runs@x.org"), folder)
    (mail,) = mailbox.mails
    assert (mail["To"], mail["From"]) == ("me@x.org", "runs@x.org")
    assert mail["Subject"] == "small has failed"
    assert "host-0001 was killed" in mail.get_payload()


@pytest.mark.parametrize(("code", "is_final"), [(450, False), (550, True)])
def test_a_refused_recipient_is_tried_again_if_the_server_says_so(
    mailbox: Mailbox, folder: Path, code: int, is_final: bool
) -> None:
    mailbox.refusals = [f"{code} no such user"]
    reason = f"SMTP {code}: no such user"
    assert failure(mail_target(mailbox.port), folder) == (reason, is_final)
    assert mailbox.mails == []


def test_a_mail_server_that_is_down_is_tried_again(folder: Path) -> None:
    assert failure(mail_target(free_port()), folder) == ("Connection refused", False)


def test_a_server_without_the_encryption_that_is_asked_for_gets_no_mail(
    mailbox: Mailbox, folder: Path
) -> None:
    _, is_final = failure(mail_target(mailbox.port, security="starttls"), folder)
    assert is_final and mailbox.mails == []


@pytest.fixture
def certificate(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A certificate of localhost, with its key, which this process trusts."""
    path = folder / "cert.pem"
    command = (
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        f"-addext subjectAltName=DNS:localhost -keyout {path} -out {path}.crt"
    )
    subprocess.run(command.split(), check=True, capture_output=True)
    with path.open("a") as file:
        file.write(Path(f"{path}.crt").read_text())
    monkeypatch.setenv("SSL_CERT_FILE", f"{path}.crt")
    return path


def test_a_login_is_encrypted_and_its_password_never_in_a_failure(
    folder: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", SECRET)
    login = {"security": "starttls", "user": "me", "password_secret": "PASSWORD"}
    with smtp_server(certificate) as mailbox:
        mailbox.password = SECRET
        send(mail_target(mailbox.port, **login), folder)
        assert (mailbox.logins, mailbox.encrypted) == ([("me", SECRET)], [True])
        mailbox.password = "another"
        reason, is_final = failure(mail_target(mailbox.port, **login), folder)
    assert is_final and SECRET not in reason and "wrong password: (secret)" in reason


def test_a_certificate_that_is_not_trusted_gets_no_password(
    folder: Path, certificate: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PASSWORD", SECRET)
    monkeypatch.delenv("SSL_CERT_FILE")
    login = {"security": "starttls", "user": "me", "password_secret": "PASSWORD"}
    with smtp_server(certificate) as mailbox:
        reason, _ = failure(mail_target(mailbox.port, **login), folder)
        assert mailbox.logins == []
    assert "certificate is not valid" in reason


def test_a_command_has_the_event_in_its_environment(folder: Path) -> None:
    script = 'echo "$SLIPWAY_NOTIFY_EVENT $SLIPWAY_NOTIFY_RUN"; echo "$SLIPWAY_NOTIFY_JSON"'
    send(CommandTarget(command=("sh", "-c", script)), folder)
    first, second = (folder / "logs" / "notify.log").read_text().splitlines()
    assert first == "failed small"
    assert json.loads(second)["message"] == "host-0001 was killed"


def test_a_command_that_fails_is_tried_again(folder: Path) -> None:
    target = CommandTarget(command=("sh", "-c", "exit 3"))
    assert failure(target, folder) == ("exited with code 3", False)


def test_a_command_that_does_not_exist_is_final(folder: Path) -> None:
    reason, is_final = failure(CommandTarget(command=("no-such-program",)), folder)
    assert "No such file" in reason and is_final


@pytest.mark.parametrize("is_cancelled", [False, True], ids=["deadline", "end of the run"])
def test_a_command_in_time_trouble_ends_with_all_that_it_started(
    folder: Path, monkeypatch: pytest.MonkeyPatch, is_cancelled: bool
) -> None:
    monkeypatch.setattr(delivery, "COMMAND_TIMEOUT_S", 60.0 if is_cancelled else 1.0)
    pids = folder / "pids"
    script = f"setsid sleep 1000 & echo $$ $! > {pids}; trap '' TERM; wait; sleep 1000"
    target = CommandTarget(command=("sh", "-c", script))
    with pytest.raises(DeliveryError):
        deliver(target, notice_of("failed"), folder, lambda: is_cancelled and pids.exists())
    started = [int(pid) for pid in pids.read_text().split()]
    assert len(started) == 2 and not any(map(psutil.pid_exists, started))
