"""The schema of the cluster file: where a job runs, and which provider supplies its hosts."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from launcher.cluster.attach import Attach
from launcher.cluster.gcp import Gcp
from launcher.cluster.kubernetes import Kubernetes
from launcher.cluster.local import Local
from launcher.cluster.provider_section import Port, Seconds, Text
from launcher.cluster.slurm import Slurm
from launcher.cluster.ssh import Ssh
from trainer.contract.config.base import NonNegative, Positive, Section
from trainer.contract.config.errors import KeyedError, Problems, found, suggest
from trainer.contract.config.loader import ConfigError, Loaded, load
from trainer.contract.planning import accelerators
from trainer.contract.planning.accelerators import Accelerator
from trainer.contract.planning.plan import World

Provider = Annotated[Local | Attach | Ssh | Gcp | Kubernetes | Slurm, Field(discriminator="kind")]


def _allow_number(schema: dict[str, Any]) -> None:
    """Changes the JSON Schema: a number is a range of one size."""
    as_object = {name: schema.pop(name) for name in list(schema)}
    schema["anyOf"] = [{"type": "integer", "minimum": 1}, as_object]


class Range(Section):
    """A fixed number, or the minimum and maximum of an elastic one."""

    model_config = ConfigDict(json_schema_extra=_allow_number)

    min: Positive = Field(description="Smallest number with which a run continues.")
    max: Positive = Field(description="Number with which a run starts.")

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
            raise KeyedError(("min", f"{self.min} is larger than max, {self.max}"))
        return self


class Cluster(Section):
    """Slices of an accelerator, and the provider that supplies them."""

    accelerator: str = Field(
        description="Accelerator of one slice: a TPU or GPU with its size (v4-32, h100-16), or cpu."
    )
    slices: Range = Field(
        default=Range(min=1, max=1),
        description="Number of slices. A range makes the run elastic: it continues with fewer "
        "slices when some are lost.",
    )
    hosts: Range | None = Field(
        default=None,
        description="Number of hosts of one slice. By default, it follows from `accelerator`. A "
        "range makes the run elastic.",
    )
    devices_per_host: Positive | None = Field(
        default=None,
        description="Number of devices of one host. By default, it follows from `accelerator`.",
    )
    processes_per_host: Positive = Field(
        default=1,
        description="Number of processes on each host, among which its devices are divided "
        "evenly. Only for GPUs, and for cpu, which simulates them. With as many processes as "
        "devices, each process has one device.",
    )
    spares: NonNegative = Field(
        default=0,
        description="Number of hosts beside those of the run that take the place of lost ones; the "
        "number of slices on TPUs and where there are several slices. A standby process waits on "
        "each.",
    )
    host_memory_gib: Annotated[float, Field(gt=0)] | None = Field(
        default=None,
        description="Memory of one host in GiB, which the forecast of a job must fit. By default, "
        "that of the machine type with the accelerator, if it is known.",
    )
    provider: Provider = Field(description="How the hosts are obtained.")
    coordinator_port: Port | None = Field(
        default=None,
        description="Port of JAX's coordinator on the first host. Another free port is used when "
        "it is taken, and by default.",
    )
    wait_for_hosts_s: Seconds = Field(
        default=300.0,
        description="Seconds to wait for lost hosts before the run continues with fewer hosts or "
        "fails.",
    )
    storage: Text | None = Field(
        default=None,
        description="Where jobs without their own `storage` keep checkpoints: a folder that all "
        "hosts share, or gs://BUCKET/FOLDER.",
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
                raise KeyedError(*((k, "missing; required with accelerator: cpu") for k in unsaid))
        try:
            _ = self.slice
        except ValueError as error:
            raise KeyedError(("hosts" if self.hosts else "devices_per_host", str(error))) from None
        if problems := list(self._problems()):
            raise KeyedError(*problems)
        whole = with_spares(self.world(simulated=False), self.spares)
        self.provider.check_slices(self.slice, whole.slices, whole.hosts)
        return self

    def _problems(self) -> Problems:
        """Yields the keys whose values do not go together with those of other keys."""
        if self.hosts and self.hosts.min < self.hosts.max and self.slices.max > 1:
            yield "hosts", "a run on several slices loses whole slices. Use slices: {min, max}"
        if self.spares and self.provider.rents_slices:
            yield "spares", "must be 0 where slices are requested for each run"
        count, devices = self.processes_per_host, self.slice.devices_per_host
        if count > 1 and self.slice.platform == "tpu":
            problem = f"expected 1, found {count}: one process has all TPU chips of a host"
            yield "processes_per_host", problem
        elif devices % count:
            problem = f"expected a divisor of the {devices} devices of a host, found {count}"
            yield "processes_per_host", problem

    @property
    def is_elsewhere(self) -> bool:
        """Whether one of the run's hosts drives it, and this machine only displays it."""
        return self.provider.is_remote

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
        return self._world(self.accelerator_for(simulate_hosts), self.slices.max, simulated)

    def smaller_worlds(self, simulated: bool) -> Iterator[World]:
        """Yields the worlds that an elastic cluster may shrink to, smallest first."""
        for slices in range(self.slices.min, self.slices.max):
            yield self._world(self.slice, slices, simulated)
        for hosts in range(self.hosts.min, self.hosts.max) if self.hosts else ():
            with suppress(ValueError):  # no slice has that size
                yield self._world(
                    accelerators.with_hosts(self.slice, hosts), self.slices.max, simulated
                )

    def _world(self, part: Accelerator, slices: int, simulated: bool) -> World:
        return World(
            accelerator=part.name,
            platform=part.platform,
            simulated=simulated,
            slices=slices,
            hosts_per_slice=part.hosts,
            devices_per_host=part.devices_per_host,
            processes_per_host=self.processes_per_host,
            topology=part.topology,
            host_bounds=part.host_bounds,
        )


def with_spares(world: World, spares: int) -> World:
    """Returns a world with more slices, or with more hosts where it has one slice without a torus.

    These are the units that a run loses and replaces.
    """
    if world.platform == "tpu" or world.slices > 1:
        return world.model_copy(update={"slices": world.slices + spares})
    return world.model_copy(update={"hosts_per_slice": world.hosts_per_slice + spares})


class ClusterRef(Section):
    """The command-line options that say where a job runs. The run records them."""

    name: str = Field(default="local", description="Name or path of the cluster file.")
    simulate: bool = Field(default=False, description="Whether hosts are simulated here.")
    simulate_hosts: Positive | None = Field(
        default=None, description="Number of simulated hosts, if not that of the cluster file."
    )

    @property
    def simulated(self) -> bool:
        return self.simulate or self.simulate_hosts is not None

    @property
    def arguments(self) -> list[str]:
        """The options on a command line."""
        hosts = ["--simulate-hosts", str(self.simulate_hosts)] if self.simulate_hosts else []
        return ["--cluster", self.name, *["--simulate"] * self.simulate, *hosts]

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


def cluster_key(name_or_path: str, base: Path = Path()) -> str:
    """Returns the absolute path of a cluster file, or the name of a shipped one or an accelerator.

    The path distinguishes projects that each have a clusters/pod.yaml. It starts from `base`.
    """
    if is_path(name_or_path):
        return str((base / name_or_path).absolute())
    here = base / "clusters" / f"{name_or_path}.yaml"
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
    hint = suggest(name, known) or " Give a file in another folder by its path."
    return f"--cluster {name or repr(name)}: unknown cluster. Known: {', '.join(known)}.{hint}"
