"""The protocol between a launching process and a host: one JSON object per line, both ways.

Orders arrive on the host's standard input; answers go to its standard output.
All providers use {"node": Order}.
The head answers {"port": n} and {"up": true}, or {"failed": why};
{"gone": true} is the last answer.
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
from launcher.runs.directory import RUN_ID
from trainer.contract.planning.plan import World


class Order(BaseModel):
    """The Ray node of a host."""

    token: str = Field(repr=False)
    process: int
    world: World
    ip: str
    head: tuple[str, int] | None
    """None: it is this host, which says where."""


class Orders:
    """Those that come on standard input; `over` once the other side is gone."""

    def __init__(self) -> None:
        self.over = False
        self._rest = b""

    def wait(self, timeout_s: float | None, *others: int) -> list[dict[str, Any]]:
        """What has come, as soon as something has, here or on one of the other descriptors."""
        own = [] if self.over else [0]
        readable, _, _ = select.select([*own, *others], [], [], timeout_s)
        if 0 not in readable:
            return []
        chunk = os.read(0, 1 << 16)
        self.over = not chunk
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        return [order for line in lines if (order := parse_object(line)) is not None]


def tell(**answer: object) -> None:
    """Nothing, where nobody listens any more: the end of the orders says so too."""
    try:
        os.write(1, json.dumps(answer).encode() + b"\n")
    except BrokenPipeError:
        pass


class DoctorOrder(BaseModel):
    """The cluster whose head is told."""

    cluster: dict[str, Any]
    """As its file would have it; the head puts its own Ray in place of the provider."""
    cluster_name: str

    def cluster_file(self, folder: Path, provider: Mapping[str, Any]) -> str:
        """With that provider; written into `folder`."""
        path = folder / f"{self.cluster_name}.yaml"
        path.write_text(json.dumps({**self.cluster, "provider": provider}))
        return str(path)


class RunOrder(DoctorOrder):
    """The run that the head sees to."""

    job: str | None
    """As YAML; None: a run that is there goes on."""
    overrides: list[str] = []
    """Of a run that goes on."""
    secret_names: list[str] = []
    """The job's `secrets`, by the machine that launches: the head's own job.yaml adds none."""
    secrets: dict[str, str] = Field(default={}, repr=False)
    """Of the job, for `launch` there."""
    fresh: bool = False
    """Move an earlier run of the name aside."""
    runs: str
    name: str
    run_id: str
    """The id of a new run."""

    @property
    def environment(self) -> dict[str, str]:
        """Variables of `launch` there."""
        return {**self.secrets, RUN_ID: self.run_id}

    def words(self, folder: Path, provider: Mapping[str, Any]) -> list[str]:
        """What `launch` is called with there, on hosts of that provider; its files in `folder`."""
        cluster = self.cluster_file(folder, provider)
        if self.job is None:
            named = f"secrets={json.dumps(self.secret_names)}"
            words = ["resume", self.name, *self.overrides, named]
        else:
            job = folder / "job.yaml"
            job.write_text(self.job)
            words = ["run", str(job), *(["--fresh"] * self.fresh)]
        return [*words, "--cluster", cluster, "--runs", self.runs]
