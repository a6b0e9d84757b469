"""What the `provider` sections of a cluster file have in common."""

from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from trainer.contract.config.base import Section
from trainer.contract.planning.accelerators import Accelerator

if TYPE_CHECKING:
    from launcher.cluster.local import Local

Port = Annotated[int, Field(ge=1, le=65535)]
Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(ge=0)]

PROXY_JUMP = "Hosts to connect through, as for `ssh -J`. By default, hosts are reached directly."
REMOTE_DIR = (
    "Folder on every host for environments, code and runs. It must be able to have the same path "
    "on all hosts."
)


class ProviderSection(Section):
    """What the sections of all providers have in common. Values here are those of most kinds."""

    is_on_this_machine: ClassVar[bool] = False
    """Whether hosts are on this machine even when they are not simulated."""
    rents_slices: ClassVar[bool] = False
    """Whether hosts are requested for a run, cost money, and have to be released."""
    own_queue: ClassVar[str] = ""
    """What starts runs when there are hosts for them; "" when Slipway's own queue does."""

    price_per_chip_hour: Annotated[float, Field(ge=0)] | None = Field(
        default=None,
        description="Price of one chip in US dollars per hour; of a device, for CPU devices. "
        "Defaults to the list price for `gcp`, and is unknown for other kinds.",
    )

    @property
    def rented_zone(self) -> str | None:
        """Zone in which hosts are rented; None when none is set, or none are rented."""
        return None

    @property
    def rents_spot(self) -> bool:
        """Whether the rented hosts are spot capacity."""
        return False

    @property
    def is_remote(self) -> bool:
        """Whether one of the run's hosts drives it, and this machine only displays it."""
        return False

    @property
    def simulation(self) -> "Local":
        """The section of hosts that simulate this provider's hosts on this machine."""
        from launcher.cluster.local import Local

        return Local()

    def needs_storage(self, hosts: int) -> bool:
        """Returns whether a run on `hosts` hosts loses checkpoints that are in its own folder."""
        return hosts > 1

    def check_slices(self, accelerator: Accelerator, slices: int, hosts: int) -> None:
        """Raises KeyedError when the provider cannot supply `slices` slices of an accelerator.

        `hosts`: the number of their hosts, with spares.
        """
