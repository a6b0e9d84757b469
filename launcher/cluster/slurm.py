"""The `provider` section of hosts that Slurm allocates."""

from typing import ClassVar, Literal

from pydantic import Field

from launcher.cluster.provider_section import ProviderSection, Text


class Slurm(ProviderSection):
    """Hosts of a Slurm cluster, one task on each. They share the run's folder."""

    own_queue: ClassVar[str] = "Slurm"

    kind: Literal["slurm"]
    partition: str | None = Field(
        default=None, description="Slurm partition. Defaults to the site's default partition."
    )
    account: str | None = Field(
        default=None, description="Slurm account to charge. Defaults to the user's account."
    )
    qos: str | None = Field(
        default=None, description="Slurm quality of service. Defaults to the account's."
    )
    time_limit: str | None = Field(
        default=None,
        description="Time limit of the job, in the format of sbatch. Before it ends, the run "
        "saves a checkpoint and is requeued.",
    )
    sbatch_args: list[Text] = Field(
        default=["--exclusive"],
        description="Additional arguments for sbatch, such as --constraint=a100.",
    )

    def needs_storage(self, hosts: int) -> bool:
        del hosts
        return False
