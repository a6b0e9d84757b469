"""One try to deliver a notice to a target. Every try has a deadline."""

import json
import os
import smtplib
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import IO
from urllib.error import HTTPError, URLError
from urllib.request import HTTPRedirectHandler, Request, build_opener

from launcher.core.formatting import describe_status
from launcher.host.process_tree import ProcessTree, ReaperError
from launcher.host.reaper_messages import Exited, Failed
from launcher.notify import formats
from launcher.notify.notices import Notice
from trainer.contract.config.notify import (
    AnyTarget,
    CommandTarget,
    EmailTarget,
    UrlTarget,
    is_http_url,
)
from trainer.contract.protocol.environment import (
    NOTIFY_EVENT,
    NOTIFY_JSON,
    NOTIFY_MESSAGE,
    NOTIFY_RUN,
)

ANSWER_TIMEOUT_S = 10.0
"""Seconds that a server may take for each answer."""
COMMAND_TIMEOUT_S = 30.0
POLL_INTERVAL_S = 0.1
TEMPORARY = (408, 425, 429)
"""Client errors of HTTP after which a repetition may succeed."""
LONGEST_REASON = 200


class DeliveryError(Exception):
    """A try that failed. `is_final`: another try would fail, too."""

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class _NoRedirects(HTTPRedirectHandler):
    """Makes a redirect an error: it would turn a POST into a GET, and take a token along."""

    def redirect_request(
        self, req: Request, fp: IO[bytes], code: int, msg: str, headers: object, newurl: str
    ) -> None:
        del req, fp, code, msg, headers, newurl


def deliver(
    target: AnyTarget, notice: Notice, folder: Path, is_cancelled: Callable[[], bool]
) -> None:
    """Sends a notice once. Raises DeliveryError, without the value of any secret.

    `folder`: the run's, for the output of a command. `is_cancelled`: whether a command is to be
    ended now.
    """
    try:
        match target:
            case UrlTarget():
                _post(target, notice)
            case EmailTarget():
                _mail(target, notice)
            case CommandTarget():
                _run(target, notice, folder, is_cancelled)
    except DeliveryError as error:
        text = _without_secrets(str(error), target)[:LONGEST_REASON]
        raise DeliveryError(text, is_final=error.is_final) from None


def _post(target: UrlTarget, notice: Notice) -> None:
    url = target.url or _secret(target.url_secret)
    if not is_http_url(url):
        raise DeliveryError(f"{target.label} is not a URL (https://...)", is_final=True)
    body = formats.http_body(target, notice)
    headers = {"User-Agent": "slipway", **body.headers}
    if target.token_secret:
        headers["Authorization"] = f"Bearer {_secret(target.token_secret)}"
    request = Request(url, body.data, headers, method="POST")
    try:
        build_opener(_NoRedirects).open(request, timeout=ANSWER_TIMEOUT_S).close()
    except HTTPError as error:
        with error:
            is_final = error.code < 500 and error.code not in TEMPORARY
            raise DeliveryError(f"HTTP status {error.code}", is_final=is_final) from None
    except URLError as error:
        raise DeliveryError(_cause(error.reason)) from None
    except (OSError, HTTPException, ValueError) as error:
        raise DeliveryError(_cause(error)) from None


def _mail(target: EmailTarget, notice: Notice) -> None:
    host, port, name = target.server, target.port, socket.gethostname()
    try:
        with (
            smtplib.SMTP_SSL(
                host, port, name, timeout=ANSWER_TIMEOUT_S, context=ssl.create_default_context()
            )
            if target.security == "tls"
            else smtplib.SMTP(host, port, name, timeout=ANSWER_TIMEOUT_S)
        ) as server:
            if target.security == "starttls":
                server.starttls(context=ssl.create_default_context())
            if target.user:
                server.login(target.user, _secret(target.password_secret))
            server.send_message(formats.email(target, notice))
    except smtplib.SMTPRecipientsRefused as error:
        raise _smtp_error(*next(iter(error.recipients.values()))) from None
    except smtplib.SMTPResponseException as error:
        raise _smtp_error(error.smtp_code, error.smtp_error) from None
    except smtplib.SMTPNotSupportedError as error:
        raise DeliveryError(str(error), is_final=True) from None
    except (OSError, ValueError) as error:
        raise DeliveryError(_cause(error)) from None


def _smtp_error(code: int, text: bytes | str) -> DeliveryError:
    said = text.decode(errors="replace") if isinstance(text, bytes) else text
    return DeliveryError(f"SMTP {code}: {said}", is_final=code >= 500)


def _run(
    target: CommandTarget, notice: Notice, folder: Path, is_cancelled: Callable[[], bool]
) -> None:
    """Runs the command. Its whole process tree ends with it, and with this process."""
    try:
        tree = ProcessTree()
    except ReaperError as error:
        raise DeliveryError(str(error)) from None
    try:
        log = folder / "logs" / "notify.log"
        tree.start("notify", target.command, _environment(notice), log, Path.cwd())
        status = _wait(tree, time.monotonic() + COMMAND_TIMEOUT_S, is_cancelled)
    except ReaperError as error:
        raise DeliveryError(str(error)) from None
    finally:
        tree.close()
    if status is None:
        raise DeliveryError(f"ended after {COMMAND_TIMEOUT_S:.0f} s without an exit")
    if status:
        raise DeliveryError(describe_status(status))


def _wait(tree: ProcessTree, deadline: float, is_cancelled: Callable[[], bool]) -> int | None:
    """Returns the wait status of the command; None when it does not end in time."""
    while time.monotonic() < deadline and not is_cancelled():
        answers = tree.answers(POLL_INTERVAL_S)
        if answers is None:
            raise ReaperError("the reaper of the command has ended")
        for answer in answers:
            if isinstance(answer, Exited):
                return answer.status
            if isinstance(answer, Failed):
                raise DeliveryError(answer.reason, is_final=True)
    return None


def _environment(notice: Notice) -> Mapping[str, str]:
    return {
        **os.environ,
        NOTIFY_EVENT: notice.event,
        NOTIFY_RUN: notice.run,
        NOTIFY_MESSAGE: notice.text,
        NOTIFY_JSON: json.dumps(notice.as_json()),
    }


def _secret(name: str | None) -> str:
    value = os.environ.get(name or "")
    if value is None:
        reason = f"the environment variable {name} is not set in this process"
        raise DeliveryError(reason, is_final=True)
    return value


def _without_secrets(text: str, target: AnyTarget) -> str:
    """Hides values that a server may have repeated in its answer."""
    for name in target.secret_names:
        if value := os.environ.get(name):
            text = text.replace(value, "(secret)")
    return text


def _cause(error: object) -> str:
    """Describes an error without the address that was used, which may be a secret."""
    if isinstance(error, TimeoutError):
        return f"no answer within {ANSWER_TIMEOUT_S:.0f} s"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not valid: {error.verify_message}"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return type(error).__name__
