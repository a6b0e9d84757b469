"""The `provider` section of a cluster file: one class per kind, with what differs between kinds."""

import re
from contextlib import suppress
from ipaddress import ip_address
from typing import Annotated, ClassVar, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema

from launcher.cluster import gke
from launcher.core.ipv4 import NEEDED, is_ipv6
from trainer.contract.config.base import NonNegative, Positive, Section
from trainer.contract.config.errors import KeyedError, found
from trainer.contract.planning.accelerators import Accelerator

Port = Annotated[int, Field(ge=1, le=65535)]
Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(ge=0)]

PROXY_JUMP = "Hosts to connect through, as for `ssh -J`. By default, hosts are reached directly."
REMOTE_DIR = (
    "Folder on every host for environments, code and runs. It must be able to have the same path "
    "on all hosts."
)


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
        """Settings of hosts that simulate this provider's hosts on this machine."""
        return Local()

    def needs_storage(self, hosts: int) -> bool:
        """Returns whether a run on `hosts` hosts loses checkpoints that are in its own folder."""
        return hosts > 1

    def check_slices(self, accelerator: Accelerator, slices: int, hosts: int) -> None:
        """Raises KeyedError when the provider cannot supply `slices` slices of an accelerator.

        `hosts`: the number of their hosts, with spares.
        """


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


class Kubernetes(ProviderSection):
    """Pods of a Kubernetes cluster with KubeRay. Each run has its own Ray cluster."""

    own_queue: ClassVar[str] = "Kubernetes"

    kind: Literal["kubernetes"]
    image: Text = Field(
        description="Container image of all pods. It holds the launcher's Python, Slipway, and the "
        "folder that `launch` is started in, at the same paths."
    )
    namespace: Text = Field(default="default", description="Namespace of all created objects.")
    context: Text | None = Field(
        default=None,
        description="Context of the kubeconfig. Defaults to the kubeconfig's current context.",
    )
    service_account: Text | None = Field(
        default=None, description="Service account of all pods. Defaults to the namespace's."
    )
    queue: Text | None = Field(
        default=None,
        description="Kueue queue that admits the run. By default, the pods are scheduled "
        "immediately.",
    )
    priority_classes: dict[Text, int] = Field(
        default={},
        description="Smallest `priority` of the jobs that get a priority class, by the name of the "
        "class: {normal: 0, urgent: 5}. With `queue`, it is a WorkloadPriorityClass of Kueue, else "
        "a PriorityClass of the pods. Other jobs get the default.",
    )
    cpu: Positive | None = Field(
        default=None, description="CPU cores that the pod of each host requests."
    )
    memory: Text | None = Field(
        default=None, description='Memory that the pod of each host requests, such as "64Gi".'
    )
    node_selector: dict[Text, str] = Field(
        default={}, description="Labels of the Kubernetes nodes that the hosts' pods may run on."
    )
    tolerations: list[Text] = Field(
        default=[],
        description="Keys of taints that the hosts' pods tolerate, besides those of TPUs and GPUs.",
    )
    volume_claims: dict[Text, Text] = Field(
        default={},
        description="PersistentVolumeClaims to mount in all pods, by the path of the mount.",
    )
    start_timeout_s: Seconds = Field(
        default=1200.0,
        description="Seconds for the pods to become ready. Time in a queue does not count.",
    )

    def priority_class(self, priority: int) -> str | None:
        """Returns the priority class of a job with this priority; None for the default."""
        classes = [(least, name) for name, least in self.priority_classes.items()]
        return max((one for one in classes if one[0] <= priority), default=(0, None))[1]

    def check_slices(self, accelerator: Accelerator, slices: int, hosts: int) -> None:
        del slices, hosts
        if not gke.has(accelerator):
            known = ", ".join(gke.ACCELERATORS)
            message = f"GKE has no nodes of TPU {accelerator.generation}; it has those of {known}"
            raise KeyedError(("accelerator", message))


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
