"""The `provider` section of a running Ray cluster."""

import re
from contextlib import suppress
from ipaddress import ip_address
from typing import Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from launcher.cluster.provider_section import ProviderSection, Text
from launcher.core.ipv4 import NEEDED, is_ipv6
from trainer.contract.config.errors import KeyedError, found


def is_address(text: str) -> bool:
    """Returns whether the text is HOST:PORT and not a URL."""
    host, _, port = text.rpartition(":")
    return bool(host) and "/" not in host and port.isdecimal() and 0 < int(port) < 65536


def _is_url(text: str) -> bool:
    return re.fullmatch(r"https?://[^/@?#\s]+/?", text) is not None


def is_loopback(host: str | None) -> bool:
    """Returns whether the name or address is this machine's loopback."""
    if host == "localhost":
        return True
    with suppress(ValueError):
        return ip_address(host or "").is_loopback
    return False


class Attach(ProviderSection):
    """A running Ray cluster; this machine is one of its nodes, or a client of its Jobs API."""

    kind: Literal["attach"]
    address: Text = Field(
        default="auto",
        description="Address of the cluster's head (host:port), or URL of its Jobs API "
        "(http://host:8265). auto uses RAY_ADDRESS, else the cluster that this machine is a node "
        "of.",
    )
    token_path: Text | None = Field(
        default=None,
        description="File with the cluster's token. By default, Ray's own variables and files "
        "supply the token.",
    )
    proxy: Text | None = Field(
        default=None,
        description="HTTP proxy (http://host:port) for an https:// address. By default, no proxy "
        "is used.",
    )
    labels: dict[Text, str] = Field(
        default={}, description="Labels that a Ray node must have to be a host of a run."
    )
    own: SkipJsonSchema[bool] = Field(
        default=False,
        description="Internal: whether Slipway has started the nodes, as on SSH hosts.",
    )

    @field_validator("address")
    @classmethod
    def _is_of_a_head(cls, address: str) -> str:
        if is_address(address) and is_ipv6(address.rpartition(":")[0]):
            raise ValueError(f"found {found(address)}. {NEEDED}")
        if address != "auto" and not is_address(address) and not _is_url(address):
            wanted = "host:port of a Ray head, http://host:8265 of its Jobs API, or auto"
            raise ValueError(f"expected {wanted}, found {found(address)}")
        return address

    @model_validator(mode="after")
    def _keeps_the_token(self) -> Self:
        if self.proxy is None:
            return self
        if not _is_url(self.proxy):
            raise KeyedError(("proxy", f"expected http://host:port, found {found(self.proxy)}"))
        host = urlsplit(self.address).hostname
        if not self.address.startswith("https://") or is_loopback(host):
            message = "a proxy is only allowed for https://... on another machine"
            raise KeyedError(("proxy", f"{message}: for any other address it would see the token"))
        return self

    @property
    def is_by_http(self) -> bool:
        """Whether the cluster is reached only through its Jobs API."""
        return _is_url(self.address)

    @property
    def is_remote(self) -> bool:
        return self.is_by_http
