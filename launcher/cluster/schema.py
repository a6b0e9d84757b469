"""The schema of the cluster file: where a job runs, and which provider supplies its hosts."""

import re
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import ConfigDict, Field, field_validator, model_validator

from launcher.cluster import gke
from launcher.core.ipv4 import NEEDED, is_ipv6
from trainer.contract.config.base import NonNegative, Positive, Section
from trainer.contract.config.errors import KeyedError, found, suggest
from trainer.contract.config.loader import ConfigError, Loaded, load
from trainer.contract.planning import accelerators
from trainer.contract.planning.accelerators import Accelerator
from trainer.contract.planning.plan import World

Port = Annotated[int, Field(ge=1, le=65535)]
Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(ge=0)]


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


class Local(Section):
    """Hosts simulated on this machine, one Ray node each."""

    kind: Literal["local"] = "local"
    netns: bool = Field(
        default=False, description="each host in its own network namespace; needs root"
    )
    host_env: dict[NonNegative, dict[str, str]] = Field(
        default={}, description="extra environment by host number: to play a host that differs"
    )
    replace_after_s: Seconds | None = Field(
        default=0.0, description="when a lost host is replaced by a new one; null: never"
    )


class Attach(Section):
    """A running Ray cluster; this machine is one of its nodes, or a client of its Jobs API."""

    kind: Literal["attach"]
    address: Text = Field(
        default="auto",
        description="host:port of its head; auto: RAY_ADDRESS, or the one here; or http://... of "
        "its Jobs API",
    )
    token_path: Text | None = Field(
        default=None, description="file with the cluster's token; else as Ray finds it"
    )
    proxy: Text | None = Field(
        default=None, description="http://host:port to reach https://... through; else none"
    )
    labels: dict[Text, str] = Field(default={}, description="of the nodes that may be hosts")
    own: bool = Field(default=False, description="nodes that Slipway has started, as for ssh")

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
    def _keeps_the_token(self) -> "Attach":
        if self.proxy is None:
            return self
        if not _is_url(self.proxy):
            raise KeyedError(("proxy", f"expected http://host:port, found {found(self.proxy)}"))
        host = urlsplit(self.address).hostname
        if not self.address.startswith("https://") or is_loopback(host):
            message = "only https://... of another machine is reached through a proxy"
            raise KeyedError(("proxy", f"{message}: any other one would show it the token"))
        return self

    @property
    def is_by_http(self) -> bool:
        """Whether the cluster is reached only through its Jobs API."""
        return _is_url(self.address)


class Ssh(Section):
    """Machines that are reached by SSH, through the user's own OpenSSH and its configuration."""

    kind: Literal["ssh"]
    hosts: Annotated[list[Text], Field(min_length=1)] = Field(
        description="names or addresses, as `ssh` takes them, in rank order; the first is the head"
    )
    user: Text | None = Field(default=None, description="on all hosts; else OpenSSH decides")
    port: Port | None = None
    identity: Text | None = Field(default=None, description="file with the private key")
    jump: Text | None = Field(default=None, description="hosts to go through: as of ssh -J")
    config: Text | None = Field(default=None, description="in place of ~/.ssh/config")
    folder: Text = Field(
        default="~/.cache/slipway", description="on every host: environments, code, runs"
    )

    @field_validator("hosts")
    @classmethod
    def _are_others(cls, hosts: list[str]) -> list[str]:
        if twice := [host for host in dict.fromkeys(hosts) if hosts.count(host) > 1]:
            raise ValueError(f"{', '.join(twice)} stands there more than once")
        if options := [host for host in hosts if host.startswith("-")]:
            raise ValueError(f"{', '.join(options)}: no name of a host begins with '-'")
        return hosts


class Gcp(Section):
    """Cloud TPU slices. `project` and `zone` default to those of gcloud's configuration."""

    kind: Literal["gcp"]
    zone: Text | None = None
    project: Text | None = None
    accelerator_type: Text | None = Field(
        default=None, description="as gcloud calls it; else it follows from `accelerator`"
    )
    runtime_version: Text | None = Field(
        default=None, description="of the hosts' software; else that of the generation, for JAX"
    )
    spot: bool = Field(default=False, description="cheaper, and taken away at any moment")
    reservation: Text | None = Field(default=None, description="its name")
    valid_minutes: Annotated[float, Field(gt=0)] | None = Field(
        default=None, description="how long to wait for capacity; null: as long as it takes"
    )
    network: Text | None = None
    subnetwork: Text | None = None
    internal_ips: bool = Field(
        default=False, description="hosts have no address outside of their network"
    )
    service_account: Text | None = Field(
        default=None, description="e-mail address of who the hosts are; else the project's default"
    )
    labels: dict[Text, str] = Field(default={}, description="of the resources, for the bill")
    autostop_minutes: Annotated[float, Field(ge=0)] = Field(
        default=30.0,
        description="How long the hosts stay after a run that failed. For as long, a run that is "
        "over and whose folder cannot be copied keeps them. 0 gives them back at once.",
    )
    max_hours: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="How long slices may be held. Then the run is stopped with a checkpoint, and "
        "they are given back. null sets no limit.",
    )
    unreachable_minutes: Annotated[float, Field(gt=0)] = Field(
        default=30.0,
        description="Slices whose hosts have not answered by SSH for so long are given back.",
    )
    price_per_chip_hour: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="in US dollars; else the list price, where one is known"
    )
    user: Text | None = Field(default=None, description="on the hosts; else one is made there")
    identity: Text | None = Field(
        default=None, description="file with that user's private key; else a key of its own"
    )
    jump: Text | None = Field(default=None, description="hosts to go through: as of ssh -J")
    folder: Text = Field(default="~/.cache/slipway", description="as for ssh")
    endpoint: Text | None = Field(
        default=None, description="host:port of a server without TLS that speaks the same API"
    )

    @model_validator(mode="after")
    def _has_one_tier(self) -> "Gcp":
        if self.spot and self.reservation:
            raise KeyedError(("reservation", "with spot: true: say one of the two"))
        return self


class Kubernetes(Section):
    """Pods of a Kubernetes cluster with KubeRay. Each run has its own Ray cluster."""

    kind: Literal["kubernetes"]
    image: Text = Field(description="with the launcher's Python, Slipway and the folder it is in")
    namespace: Text = "default"
    context: Text | None = Field(default=None, description="of the kubeconfig; else its current")
    service_account: Text | None = Field(default=None, description="of all pods")
    queue: Text | None = Field(default=None, description="of Kueue, which then lets the run in")
    cpu: Positive | None = Field(default=None, description="of each host's pod")
    memory: Text | None = Field(default=None, description='of each host\'s pod: "64Gi"')
    node_selector: dict[Text, str] = Field(default={}, description="of the hosts' pods")
    tolerations: list[Text] = Field(
        default=[], description="keys of taints, beside those of TPUs and GPUs"
    )
    claims: dict[Text, Text] = Field(
        default={}, description="path in all pods: the PersistentVolumeClaim that is mounted there"
    )
    start_timeout_s: Seconds = Field(
        default=1200.0, description="for the pods to be ready, once no queue keeps them back"
    )


class Slurm(Section):
    """Hosts of a Slurm cluster, one task on each. They share the run's folder."""

    kind: Literal["slurm"]
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time_limit: str | None = Field(
        default=None, description="as of sbatch; before it is over the run saves and is requeued"
    )
    options: list[Text] = Field(
        default=["--exclusive"], description="more words for sbatch: --constraint=a100, ..."
    )


Provider = Annotated[Local | Attach | Ssh | Gcp | Kubernetes | Slurm, Field(discriminator="kind")]


def _allow_number(schema: dict[str, Any]) -> None:
    """Changes the JSON Schema: a number is a range of one size."""
    as_object = {name: schema.pop(name) for name in list(schema)}
    schema["anyOf"] = [{"type": "integer", "minimum": 1}, as_object]


class Range(Section):
    """A fixed number, or the minimum and maximum of an elastic one."""

    model_config = ConfigDict(json_schema_extra=_allow_number)

    min: Positive
    max: Positive

    @model_validator(mode="before")
    @classmethod
    def _of_number(cls, given: Any) -> Any:
        if isinstance(given, int) and not isinstance(given, bool) and given > 0:
            return {"min": given, "max": given}
        if not isinstance(given, dict | Range):
            wanted = "a whole number of at least 1, or {min: 2, max: 4}"
            raise ValueError(f"expected {wanted}, found {found(given)}")
        return given

    @model_validator(mode="after")
    def _is_ordered(self) -> "Range":
        if self.min > self.max:
            raise KeyedError(("min", f"{self.min} is more than max, {self.max}"))
        return self


class Cluster(Section):
    """Slices of an accelerator, and the provider that supplies them."""

    accelerator: str
    slices: Range = Range(min=1, max=1)
    hosts: Range | None = Field(default=None, description="of one slice")
    devices_per_host: Positive | None = None
    provider: Provider
    coordinator_port: Port | None = Field(default=None, description="the first port to try")
    wait_for_hosts_s: Seconds = Field(
        default=300.0, description="for lost hosts, before going on with fewer or giving up"
    )
    storage: Text | None = Field(
        default=None, description="for jobs that name none: a folder all hosts share, or gs://..."
    )

    @field_validator("accelerator")
    @classmethod
    def _is_known(cls, name: str) -> str:
        accelerators.parse(name)
        return name

    @model_validator(mode="after")
    def _fits(self) -> "Cluster":
        if self.accelerator.lower() == "cpu":
            unsaid = [k for k in ("hosts", "devices_per_host") if getattr(self, k) is None]
            if unsaid:
                raise KeyedError(*((k, "missing; accelerator: cpu does not say") for k in unsaid))
        try:
            _ = self.slice
        except ValueError as error:
            raise KeyedError(("hosts" if self.hosts else "devices_per_host", str(error))) from None
        if self.hosts and self.hosts.min < self.hosts.max and self.slices.max > 1:
            raise KeyedError(("hosts", "several slices lose whole ones: say slices: {min, max}"))
        if isinstance(self.provider, Ssh):
            given, wanted = len(self.provider.hosts), self.slice.hosts * self.slices.max
            if given != wanted:
                message = f"{given} are named, but {self.accelerator} needs {wanted}"
                raise KeyedError(("provider", f"hosts: {message}"))
        unsaid = isinstance(self.provider, Gcp) and not self.provider.accelerator_type
        if unsaid and self.slice.platform != "tpu":
            message = f"accelerator_type: missing; {self.accelerator} is no TPU"
            raise KeyedError(("provider", message))
        if isinstance(self.provider, Kubernetes) and not gke.has(self.slice):
            known = ", ".join(gke.ACCELERATORS)
            message = f"GKE has no nodes of TPU {self.slice.generation}; it has those of {known}"
            raise KeyedError(("accelerator", message))
        return self

    @property
    def is_elsewhere(self) -> bool:
        """Whether one of the run's hosts drives it, and this machine only displays it."""
        provider = self.provider
        return isinstance(provider, Ssh | Gcp) or (
            isinstance(provider, Attach) and provider.is_by_http
        )

    @property
    def slice(self) -> Accelerator:
        """The accelerator of one slice, with its maximum number of hosts."""
        return accelerators.parse(
            self.accelerator,
            hosts=self.hosts and self.hosts.max,
            devices_per_host=self.devices_per_host,
        )

    def accelerator_for(self, simulate_hosts: int | None) -> Accelerator:
        """Returns one slice such that all slices together have `simulate_hosts` hosts.

        None means the real number of hosts.

        Raises:
          ValueError: when no slice has that size, with the nearest sizes that exist.
        """
        if simulate_hosts is None:
            return self.slice
        per_slice, rest = divmod(simulate_hosts, self.slices.max)
        if rest:
            below = max(per_slice, 1) * self.slices.max
            raise ValueError(
                f"{simulate_hosts} hosts do not divide into {self.slices.max} slices. "
                f"Take {below} or {below + self.slices.max}"
            )
        return accelerators.with_hosts(self.slice, per_slice)

    def world(self, simulated: bool, simulate_hosts: int | None = None) -> World:
        """Returns an attempt's hosts and devices. A simulated accelerator keeps its platform."""
        return _world(self.accelerator_for(simulate_hosts), self.slices.max, simulated)

    def smaller_worlds(self, simulated: bool) -> Iterator[World]:
        """Yields the worlds that an elastic cluster may shrink to, smallest first."""
        for slices in range(self.slices.min, self.slices.max):
            yield _world(self.slice, slices, simulated)
        for hosts in range(self.hosts.min, self.hosts.max) if self.hosts else ():
            with suppress(ValueError):  # no slice has that size
                yield _world(accelerators.with_hosts(self.slice, hosts), self.slices.max, simulated)


def _world(part: Accelerator, slices: int, simulated: bool) -> World:
    return World(
        accelerator=part.name,
        platform=part.platform,
        simulated=simulated,
        slices=slices,
        hosts_per_slice=part.hosts,
        devices_per_host=part.devices_per_host,
        topology=part.topology,
        host_bounds=part.host_bounds,
    )


class ClusterRef(Section):
    """The command-line options that say where a job runs. The run records them."""

    name: Text = "local"
    simulate: bool = False
    simulate_hosts: Positive | None = None

    @property
    def simulated(self) -> bool:
        return self.simulate or self.simulate_hosts is not None

    def lasting(self) -> "ClusterRef":
        """Returns a copy that means the same in any working directory."""
        if not is_path(self.name):
            return self
        return self.model_copy(update={"name": str(Path(self.name).absolute())})


def find_cluster(name_or_path: str) -> Loaded[Cluster]:
    """Reads the given path, or clusters/NAME.yaml of the current folder or of Slipway.

    The name of an accelerator ("v5p-128", "tpu-v5p-128") is also a cluster: one slice of it.

    Raises:
      ConfigError: for an unknown name, with the known ones, or for the problems of the file.
    """
    if is_path(name_or_path):
        return load(Path(name_or_path), Cluster)
    for path in _cluster_files():
        if path.stem == name_or_path:
            return load(path, Cluster)
    return Loaded(_slice_of(name_or_path), name_or_path, places={})


def cluster_key(name_or_path: str) -> str:
    """Returns the absolute path of a cluster file, or the name of a shipped one or an accelerator.

    The path distinguishes projects that each have a clusters/pod.yaml.
    """
    if is_path(name_or_path):
        return str(Path(name_or_path).absolute())
    here = Path("clusters") / f"{name_or_path}.yaml"
    return str(here.absolute()) if here.is_file() else name_or_path


def is_path(name: str) -> bool:
    given = Path(name)
    return given.suffix in (".yaml", ".yml") or len(given.parts) > 1


def _slice_of(name: str) -> Cluster:
    accelerator = name.removeprefix("tpu-").removeprefix("gpu-")
    if accelerator == "cpu" or "-" not in accelerator:
        raise ConfigError([_unknown(name)])
    try:
        accelerators.parse(accelerator)
    except ValueError as error:
        raise ConfigError([f"{_unknown(name)} As an accelerator: {error}."]) from None
    return Cluster(accelerator=accelerator, provider=Local())


def known_clusters() -> list[str]:
    return sorted({path.stem for path in _cluster_files()})


def _cluster_files() -> Iterator[Path]:
    for folder in (Path("clusters"), *_shipped()):
        yield from sorted(folder.glob("*.yaml"))


def _shipped() -> list[Path]:
    """Returns the folders of shipped files: beside the packages in a checkout, inside a wheel."""
    package = Path(__file__).parents[1]
    return [package.parent / "clusters", package / "shipped_clusters"]


def _unknown(name: str) -> str:
    known = known_clusters()
    hint = suggest(name, known) or " A file elsewhere is given by its path."
    return f"--cluster {name}: unknown cluster. Known: {', '.join(known)}.{hint}"
