"""The protocol between a launching process and a host: one JSON object per line, both ways.

Orders arrive on the host's standard input; answers go to its standard output.
All providers use {"node": Order}. The head answers {"port": n}. Every host answers {"up": true}, or
{"failed": why}; {"gone": true} is the last answer.
SSH hosts also get {"run": RunOrder} or {"look": DoctorOrder} (the head only), {"begun": true} (the
other hosts) and, at the end, {"end": true}. The head then answers {"running": true} and
{"ended": exit code, "output": what `launch` printed}.
"""

import json
import os
import select
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from launcher.core.files import parse_object
from trainer.contract.planning.plan import World
from trainer.contract.protocol.environment import RUN_ID


class Order(BaseModel):
    """The order to start the Ray node of a host."""

    token: str = Field(repr=False)
    process: int
    world: World
    ip: str
    head: tuple[str, int] | None
    """Address of the head. None when this host is the head, which reports its port."""


class Orders:
    """Orders from standard input. `over` is set once the sender is gone."""

    def __init__(self) -> None:
        self.over = False
        self._rest = b""

    def wait(self, timeout_s: float | None, *others: int) -> list[dict[str, Any]]:
        """Returns new orders once standard input or one of `others` is readable, or on timeout."""
        own = [] if self.over else [0]
        readable, _, _ = select.select([*own, *others], [], [], timeout_s)
        if 0 not in readable:
            return []
        chunk = os.read(0, 1 << 16)
        self.over = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [order for line in lines if (order := parse_object(line)) is not None]


def send(**answer: object) -> None:
    """Sends an answer. Ignores a closed pipe, which the end of the orders reports, too."""
    try:
        os.write(1, json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        pass


class DoctorOrder(BaseModel):
    """The cluster whose head receives the order."""

    cluster: dict[str, Any]
    """Content of the cluster file. The head replaces the provider with its own Ray."""
    cluster_name: str

    def cluster_file(self, folder: Path, provider: Mapping[str, Any]) -> str:
        """Writes the cluster file, with that provider, into `folder` and returns its path."""
        path = folder / f"{self.cluster_name}.yaml"
        path.write_text(json.dumps({**self.cluster, "provider": provider}))
        return str(path)


class RunOrder(DoctorOrder):
    """The run that the head drives."""

    job: str | None
    """The job as YAML. None resumes an existing run."""
    overrides: list[str] = []
    """Overrides for a resumed run."""
    secret_names: list[str] = []
    """The job's `secrets` on the launching machine. The head's own job.yaml adds none."""
    secrets: dict[str, str] = Field(default={}, repr=False)
    """The job's secrets, for `launch` on the head."""
    fresh: bool = False
    """Whether to move an earlier run of that name aside."""
    runs: str
    name: str
    run_id: str
    """Id of a new run."""

    @property
    def environment(self) -> dict[str, str]:
        """Environment variables for `launch` on the head."""
        return {**self.secrets, RUN_ID: self.run_id}

    def words(self, folder: Path, provider: Mapping[str, Any]) -> list[str]:
        """Returns the arguments of `launch` on the head, for hosts of that provider.

        The job and cluster files are written into `folder`.
        """
        cluster = self.cluster_file(folder, provider)
        if self.job is None:
            named = f"secrets={json.dumps(self.secret_names)}"
            words = ["resume", self.name, *self.overrides, named]
        else:
            job = folder / "job.yaml"
            job.write_text(self.job)
            words = ["run", str(job), *(["--fresh"] * self.fresh)]
        return [*words, "--cluster", cluster, "--runs", self.runs]
