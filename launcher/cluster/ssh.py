"""The `provider` section of machines that are reached by SSH."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from launcher.cluster.provider_section import PROXY_JUMP, REMOTE_DIR, Port, ProviderSection, Text
from trainer.contract.config.errors import KeyedError
from trainer.contract.planning.accelerators import Accelerator


class Ssh(ProviderSection):
    """Machines that are reached by SSH, through the user's own OpenSSH and its configuration."""

    kind: Literal["ssh"]
    hosts: Annotated[list[Text], Field(min_length=1)] = Field(
        description="Host names or addresses, as `ssh` accepts them, in rank order. The first "
        "host is the head."
    )
    user: Text | None = Field(
        default=None,
        description="User name on all hosts. By default, OpenSSH's configuration decides.",
    )
    port: Port | None = Field(
        default=None,
        description="SSH port of all hosts. By default, OpenSSH's configuration decides.",
    )
    ssh_key: Text | None = Field(
        default=None,
        description="File with the private key. By default, OpenSSH's agent and configuration "
        "supply the key.",
    )
    proxy_jump: Text | None = Field(default=None, description=PROXY_JUMP)
    config: Text | None = Field(
        default=None, description="OpenSSH configuration file to use instead of ~/.ssh/config."
    )
    remote_dir: Text = Field(default="~/.cache/slipway", description=REMOTE_DIR)

    @field_validator("hosts")
    @classmethod
    def _are_others(cls, hosts: list[str]) -> list[str]:
        if twice := [host for host in dict.fromkeys(hosts) if hosts.count(host) > 1]:
            raise ValueError(f"duplicate hosts: {', '.join(twice)}")
        if options := [host for host in hosts if host.startswith("-")]:
            raise ValueError(f"host names cannot begin with '-': {', '.join(options)}")
        return hosts

    @property
    def is_remote(self) -> bool:
        return True

    def check_slices(self, accelerator: Accelerator, slices: int, hosts: int) -> None:
        if len(self.hosts) != hosts:
            spares = hosts - accelerator.hosts * slices
            needs = f"{hosts} with {spares} spare" if spares > 0 else f"{hosts}"
            message = f"{len(self.hosts)} are listed, but {accelerator.name} needs {needs}"
            raise KeyedError(("provider", f"hosts: {message}"))
