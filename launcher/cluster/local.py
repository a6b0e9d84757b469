"""The `provider` section of hosts that are simulated on this machine."""

from typing import ClassVar, Literal

from pydantic import Field

from launcher.cluster.provider_section import ProviderSection, Seconds
from trainer.contract.config.base import NonNegative


class Local(ProviderSection):
    """Hosts simulated on this machine, one Ray node each."""

    is_on_this_machine: ClassVar[bool] = True

    kind: Literal["local"] = "local"
    netns: bool = Field(
        default=False,
        description="Whether each host gets its own network namespace. This requires root.",
    )
    host_env: dict[NonNegative, dict[str, str]] = Field(
        default={},
        description="Additional environment variables by host number, to simulate a host that "
        "differs from the others.",
    )
    replace_after_s: Seconds | None = Field(
        default=0.0,
        description="Seconds after which a new host replaces a lost one. null disables "
        "replacement.",
    )

    @property
    def simulation(self) -> "Local":
        return self

    def needs_storage(self, hosts: int) -> bool:
        del hosts
        return False
