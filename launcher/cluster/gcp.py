"""The `provider` section of Cloud TPU slices."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from launcher.cluster.provider_section import PROXY_JUMP, REMOTE_DIR, ProviderSection, Text
from trainer.contract.config.errors import KeyedError
from trainer.contract.planning.accelerators import Accelerator


class Gcp(ProviderSection):
    """Cloud TPU slices, requested for each run."""

    rents_slices: ClassVar[bool] = True
    own_queue: ClassVar[str] = "Cloud TPU"

    kind: Literal["gcp"]
    zone: Text | None = Field(
        default=None, description="Zone of the slices. Defaults to gcloud's configured zone."
    )
    project: Text | None = Field(
        default=None,
        description="Google Cloud project of the slices. Defaults to gcloud's configured project.",
    )
    accelerator_type: Text | None = Field(
        default=None,
        description="Accelerator type as gcloud names it (v5litepod-16). By default, it follows "
        "from `accelerator`.",
    )
    runtime_version: Text | None = Field(
        default=None,
        description="Software version of the hosts. Defaults to the version for JAX of the TPU "
        "generation.",
    )
    spot: bool = Field(
        default=False,
        description="Whether to request spot capacity, which is cheaper and can be preempted at "
        "any time.",
    )
    reservation: Text | None = Field(
        default=None, description="Name of the reservation that supplies the slices."
    )
    queue_timeout_min: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Minutes to wait for capacity, after which the request expires. null waits "
        "without a limit.",
    )
    network: Text | None = Field(
        default=None, description="VPC network of the hosts. Defaults to the project's network."
    )
    subnetwork: Text | None = Field(
        default=None, description="VPC subnetwork of the hosts. Defaults to the network's."
    )
    internal_ips: bool = Field(
        default=False, description="Whether hosts have only addresses inside their network."
    )
    service_account: Text | None = Field(
        default=None,
        description="E-mail address of the hosts' service account. Defaults to the project's "
        "service account.",
    )
    labels: dict[Text, str] = Field(
        default={}, description="Labels of the created resources, as they appear on the bill."
    )
    autostop_minutes: Annotated[float, Field(ge=0)] = Field(
        default=30.0,
        description="Minutes for which the hosts are kept after a failed run. A finished run whose "
        "folder cannot be copied keeps them as long. 0 releases them immediately.",
    )
    max_hours: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Hours for which slices may be held. Then the run is stopped with a "
        "checkpoint, and the slices are released. null sets no limit.",
    )
    unreachable_minutes: Annotated[float, Field(gt=0)] = Field(
        default=30.0,
        description="Minutes without an answer by SSH from the hosts, after which their slices are "
        "released.",
    )
    user: Text | None = Field(
        default=None,
        description="User name on the hosts. By default, the hosts create the user `slipway`.",
    )
    ssh_key: Text | None = Field(
        default=None,
        description="File with that user's private key. By default, a new key is created for "
        "each request.",
    )
    proxy_jump: Text | None = Field(default=None, description=PROXY_JUMP)
    remote_dir: Text = Field(default="~/.cache/slipway", description=REMOTE_DIR)
    endpoint: Text | None = Field(
        default=None,
        description="Address (host:port) of another server of the Cloud TPU API, without TLS.",
    )

    @model_validator(mode="after")
    def _has_one_tier(self) -> Self:
        if self.spot and self.reservation:
            raise KeyedError(("reservation", "cannot be combined with spot: true. Remove one"))
        return self

    @property
    def rented_zone(self) -> str | None:
        return self.zone

    @property
    def rents_spot(self) -> bool:
        return self.spot

    @property
    def is_remote(self) -> bool:
        return True

    def needs_storage(self, hosts: int) -> bool:
        del hosts  # the disk of even a single host is deleted with it
        return True

    def check_slices(self, accelerator: Accelerator, slices: int, hosts: int) -> None:
        del slices, hosts
        if not self.accelerator_type and accelerator.platform != "tpu":
            message = f"accelerator_type: missing; {accelerator.name} is not a TPU"
            raise KeyedError(("provider", message))
