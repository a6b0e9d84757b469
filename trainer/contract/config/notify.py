"""The targets of a `notify` list, in a job file or the user's configuration file."""

import re
from abc import abstractmethod
from typing import Annotated, Any, Literal, get_args
from urllib.parse import urlsplit

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from trainer.contract.config.base import Section
from trainer.contract.config.errors import KeyedError, found

VariableName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
NonEmpty = Annotated[str, Field(min_length=1)]
NotifyEvent = Literal[
    "finished", "failed", "cancelled", "lost", "resumed", "hang", "straggler", "budget"
]
NOTIFY_EVENTS: tuple[NotifyEvent, ...] = get_args(NotifyEvent)
ADDRESS = re.compile(r"[^@\s<>,]+@[^@\s<>,]+")


class NotifyTarget(Section):
    """What all targets have in common."""

    events: tuple[NotifyEvent, ...] = Field(
        default=NOTIFY_EVENTS, strict=False, description="Events that are sent."
    )

    @field_validator("events")
    @classmethod
    def _are_some(cls, events: tuple[NotifyEvent, ...]) -> tuple[NotifyEvent, ...]:
        if not events:
            raise ValueError("the list is empty. Remove the target, or name its events")
        return events

    @property
    @abstractmethod
    def label(self) -> str:
        """The target as logs name it: without the path of a URL, which may be a secret."""

    @property
    def secret_names(self) -> tuple[str, ...]:
        """Environment variables that the target reads."""
        return ()

    @property
    def server(self) -> str:
        """Name of the server, as far as the file says it; "" without one."""
        return ""


class UrlTarget(NotifyTarget):
    """A URL that receives each event as an HTTP POST."""

    url: NonEmpty | None = Field(
        default=None, description="URL (https://...). One of `url` and `url_secret` is required."
    )
    url_secret: VariableName | None = Field(
        default=None, description="Environment variable with the URL, when the URL is a secret."
    )
    format: Literal["json", "slack", "ntfy"] = Field(
        default="json",
        description="Body of the request: the event as JSON, a message for a Slack webhook, or one "
        "for an ntfy topic.",
    )
    token_secret: VariableName | None = Field(
        default=None,
        description="Environment variable with a token, sent as `Authorization: Bearer`. null: "
        "none.",
    )

    @field_validator("url")
    @classmethod
    def _is_a_url(cls, url: str | None) -> str | None:
        if url is not None and not is_http_url(url):
            raise ValueError(f"expected http://... or https://..., found {found(url)}")
        return url

    @model_validator(mode="after")
    def _has_one_url(self) -> "UrlTarget":
        if self.url and self.url_secret:
            raise KeyedError(("url_secret", "cannot be combined with url. Remove one"))
        if not (self.url or self.url_secret):
            wanted = "expected a target with url, url_secret, email or command"
            raise ValueError(wanted)
        return self

    @property
    def label(self) -> str:
        return origin(self.url) if self.url else f"the URL in {self.url_secret}"

    @property
    def secret_names(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.url_secret, self.token_secret)))

    @property
    def server(self) -> str:
        return urlsplit(self.url).hostname or "" if self.url else ""


class EmailTarget(NotifyTarget):
    """An e-mail address that receives each event by SMTP."""

    email: NonEmpty = Field(description="Address of the recipient.")
    smtp: NonEmpty = Field(description="SMTP server, as HOST:PORT.")
    security: Literal["starttls", "tls", "none"] = Field(
        default="starttls",
        description="Encryption: STARTTLS (usually port 587), TLS from the start (465), or none "
        "(25), which sends no password.",
    )
    sender: NonEmpty | None = Field(
        default=None, description="Address of the sender. null: that of the recipient."
    )
    user: NonEmpty | None = Field(default=None, description="User name at the server. null: none.")
    password_secret: VariableName | None = Field(
        default=None, description="Environment variable with the user's password. null: none."
    )

    @field_validator("email", "sender")
    @classmethod
    def _is_an_address(cls, address: str | None) -> str | None:
        if address is not None and not ADDRESS.fullmatch(address):
            raise ValueError(f"expected an address (me@example.com), found {found(address)}")
        return address

    @field_validator("smtp")
    @classmethod
    def _is_host_and_port(cls, smtp: str) -> str:
        host, _, port = smtp.rpartition(":")
        if not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ValueError(f"expected HOST:PORT (smtp.example.com:587), found {found(smtp)}")
        return smtp

    @model_validator(mode="after")
    def _has_a_whole_login(self) -> "EmailTarget":
        if bool(self.user) != bool(self.password_secret):
            missing = "password_secret" if self.user else "user"
            raise KeyedError((missing, "missing; user and password_secret belong together"))
        if self.user and self.security == "none":
            raise KeyedError(("security", "none would send the password in the clear. Use tls"))
        return self

    @property
    def label(self) -> str:
        return f"{self.email} by {self.smtp}"

    @property
    def secret_names(self) -> tuple[str, ...]:
        return (self.password_secret,) if self.password_secret else ()

    @property
    def server(self) -> str:
        return self.smtp.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.smtp.rpartition(":")[2])


class CommandTarget(NotifyTarget):
    """A command that runs for each event, with the event in its environment."""

    command: tuple[str, ...] = Field(
        strict=False, description="Program and its arguments, started without a shell."
    )

    @field_validator("command")
    @classmethod
    def _has_a_program(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not command or not command[0]:
            raise ValueError("the program is missing; expected a list: [notify-send, Slipway]")
        return command

    @property
    def label(self) -> str:
        return f"the command {self.command[0]}"


def is_http_url(text: str) -> bool:
    """Returns whether a text is an http or https URL with a host, in printable ASCII."""
    try:
        parts = urlsplit(text)
        _ = parts.port
    except ValueError:
        return False
    is_plain = text.isascii() and text.isprintable() and " " not in text
    return is_plain and parts.scheme in ("http", "https") and bool(parts.hostname)


def origin(url: str) -> str:
    """Returns the scheme, host and port of a URL, without a user, a path and a query."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"


def _kind(given: Any) -> str:
    for kind, target in (("command", CommandTarget), ("email", EmailTarget)):
        if isinstance(given, target) or (isinstance(given, dict) and kind in given):
            return kind
    return "url"


AnyTarget = Annotated[
    Annotated[UrlTarget, Tag("url")]
    | Annotated[EmailTarget, Tag("email")]
    | Annotated[CommandTarget, Tag("command")],
    Discriminator(_kind),
]
