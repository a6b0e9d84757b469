"""The bodies of notifications, for each kind of receiver. Pure."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from email.message import EmailMessage
from email.utils import formatdate

from launcher.notify.notices import Notice
from trainer.contract.config.notify import EmailTarget, UrlTarget

URGENT = ("failed", "cancelled", "lost", "hang", "budget")
"""Events that ntfy shows with a high priority."""
TAGS = {
    "finished": "white_check_mark", "failed": "x", "lost": "ghost", "resumed": "arrow_forward",
    "hang": "hourglass", "straggler": "turtle", "budget": "moneybag", "cancelled": "no_entry_sign",
}  # fmt: skip
"""Emoji of an event for ntfy: https://docs.ntfy.sh/emojis/."""


@dataclass(frozen=True)
class HttpBody:
    """The body of a request, with the headers that describe it."""

    data: bytes
    headers: Mapping[str, str]


def http_body(target: UrlTarget, notice: Notice) -> HttpBody:
    """Returns what a URL receives.

    References:
        Slack: https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks
        ntfy: https://docs.ntfy.sh/publish/
    """
    match target.format:
        case "slack":
            return _json_body(notice, {"text": _escaped(f"*{notice.title}*\n{notice.message}")})
        case "ntfy":
            headers = {
                "Content-Type": "text/plain; charset=utf-8",
                "Title": notice.title,
                "Tags": TAGS[notice.event],
                "Priority": "high" if notice.event in URGENT else "default",
            }
            return HttpBody(notice.message.encode(), headers)
        case _:
            return _json_body(notice, notice.as_json())


def email(target: EmailTarget, notice: Notice) -> EmailMessage:
    """Returns what an e-mail address receives."""
    message = EmailMessage()
    message["From"] = target.sender or target.email
    message["To"] = target.email
    message["Subject"] = notice.title
    message["Date"] = formatdate(notice.time)
    message["Message-ID"] = f"<{notice.id}@slipway>"
    facts = {
        "run": notice.folder, "cluster": notice.cluster, "attempt": notice.attempt,
        "step": notice.step, "checkpoint": notice.checkpoint,
    }  # fmt: skip
    lines = [f"{name:<12}{value}" for name, value in facts.items() if value is not None]
    message.set_content("\n".join([notice.message, "", *lines]) + "\n")
    return message


def _json_body(notice: Notice, content: object) -> HttpBody:
    headers = {"Content-Type": "application/json", "Idempotency-Key": notice.id}
    return HttpBody(json.dumps(content).encode(), headers)


def _escaped(text: str) -> str:
    """Escapes the characters that Slack would read as markup of links."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
