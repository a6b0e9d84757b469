"""The protocol between a launching process and a host: messages of JSON, one per line, both ways.

Orders arrive on the host's standard input; answers go to its standard output. SSH hosts get
NodeOrder first; Slurm's get the orders of slurm/node_protocol.py. The head answers HeadPort. Every
host answers NodeUp, or Failed; NodeGone is the last answer.
SSH hosts also get RunOrder or DoctorOrder (the head only), RunBegun (the other hosts) and, at the
end, EndNode. The head then answers RunStarted and LaunchEnded.
"""

import json
import os
import select
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Generic

from launcher.cluster.prices import price_per_chip_hour
from launcher.cluster.schema import Attach, Cluster
from launcher.core.errors import HostError
from launcher.core.messages import AnyMessage, Message, MessageReader, encode
from trainer.contract.planning.plan import World
from trainer.contract.protocol.environment import RUN_ID


@dataclass(frozen=True)
class NodeOrder(Message):
    """The order to start the Ray node of a host."""

    kind: ClassVar = "node"
    token: str = field(repr=False)
    process: int
    world: World
    ip: str
    head: tuple[str, int] | None
    """Address of the head. None when this host is the head, which reports its port."""


@dataclass(frozen=True)
class DoctorOrder(Message):
    """The order to inspect a cluster, whose head receives the order."""

    kind: ClassVar = "doctor"
    cluster: Cluster
    """The cluster file. The head replaces the provider with its own Ray."""
    cluster_name: str

    def cluster_file(self, folder: Path, provider: Attach) -> str:
        """Writes the cluster file into `folder` and returns its path.

        It has that provider, with the price of the original one.
        """
        path = folder / f"{self.cluster_name}.yaml"
        price = {"price_per_chip_hour": price_per_chip_hour(self.cluster)}
        priced = provider.model_copy(update=price)
        cluster = self.cluster.model_copy(update={"provider": priced})
        path.write_text(cluster.model_dump_json())
        return str(path)


@dataclass(frozen=True)
class RunOrder(DoctorOrder):
    """The order to drive a run."""

    kind: ClassVar = "run"
    job: str | None
    """The job as YAML. None resumes an existing run."""
    runs: str
    name: str
    run_id: str
    """Id of a new run."""
    overrides: list[str] = field(default_factory=list)
    """Overrides for a resumed run."""
    secret_names: list[str] = field(default_factory=list)
    """The job's `secrets` on the launching machine. The head's own job.yaml adds none."""
    secrets: dict[str, str] = field(default_factory=dict, repr=False)
    """The job's secrets, for `launch` on the head."""
    fresh: bool = False
    """Whether to move an earlier run of that name aside."""
    hot: bool = True
    """Whether the hosts load the programs that were kept for the run."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for `launch` on the head."""
        return {**self.secrets, RUN_ID: self.run_id}

    def arguments(self, folder: Path, provider: Attach) -> list[str]:
        """Returns the arguments of `launch` on the head, for hosts of that provider.

        The job and cluster files are written into `folder`.
        """
        cluster = self.cluster_file(folder, provider)
        if self.job is None:
            secrets = f"secrets={json.dumps(self.secret_names)}"
            arguments = ["resume", self.name, *self.overrides, secrets]
        else:
            job = folder / "job.yaml"
            job.write_text(self.job)
            arguments = ["run", str(job), *(["--fresh"] * self.fresh)]
        hot = [] if self.hot else ["--no-hot"]
        return [*arguments, *hot, "--cluster", cluster, "--runs", self.runs]


@dataclass(frozen=True)
class RunBegun(Message):
    """The run has begun on the head: the node outlives the launching machine's connection."""

    kind: ClassVar = "begun"


@dataclass(frozen=True)
class EndNode(Message):
    """The order to end the node."""

    kind: ClassVar = "end"


@dataclass(frozen=True)
class HeadPort(Message):
    """The port of the head, before its node is up."""

    kind: ClassVar = "port"
    port: int


@dataclass(frozen=True)
class NodeUp(Message):
    """The node is up."""

    kind: ClassVar = "up"


@dataclass(frozen=True)
class Failed(Message):
    """The host could not carry out an order, or its node has ended."""

    kind: ClassVar = "failed"
    reason: str


@dataclass(frozen=True)
class NodeGone(Message):
    """The node and everything that the host started have ended."""

    kind: ClassVar = "gone"


@dataclass(frozen=True)
class RunStarted(Message):
    """`launch` on the head holds the run."""

    kind: ClassVar = "running"


@dataclass(frozen=True)
class LaunchEnded(Message):
    """`launch` on the head has ended."""

    kind: ClassVar = "ended"
    exit_code: int
    output: str
    """The text that it printed."""


class Orders(Generic[AnyMessage]):
    """Orders of the given types from standard input. `over` is set once the sender is gone."""

    def __init__(self, types: Sequence[type[AnyMessage]]) -> None:
        self.over = False
        self._rest = b""
        self._reader = MessageReader(types, "the launching machine", HostError)

    def wait(self, timeout_s: float | None, *others: int) -> list[AnyMessage]:
        """Returns new orders once standard input or one of `others` is readable, or on timeout.

        Raises HostError for an order with a missing or wrong field.
        """
        own = [] if self.over else [0]
        readable, _, _ = select.select([*own, *others], [], [], timeout_s)
        if 0 not in readable:
            return []
        chunk = os.read(0, 1 << 16)
        self.over = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [order for line in lines if (order := self._reader.parse(line))]


def send(answer: Message) -> None:
    """Sends an answer. Ignores a closed pipe, which the end of the orders reports, too."""
    try:
        os.write(1, encode(answer))
    except BrokenPipeError:
        pass
