"""A Cloud TPU API in memory, and runs on its slices, for tests without Google's client."""

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from launcher.cluster.schema import ClusterRef, find_cluster
from launcher.core.errors import HostError
from launcher.providers.gcp.pod import TpuSliceRequest
from launcher.providers.gcp.request import Where
from launcher.providers.gcp.slice_records import write_where
from launcher.runs.folder import REMOTE

CLUSTER = """\
accelerator: v4-16
provider: {{kind: gcp, project: {project}, zone: us-central2-b{more}}}
"""


@dataclass
class MemoryApi:
    """The queued resources of all projects: name -> label of their cluster."""

    held: dict[str, str] = field(default_factory=dict)
    deleted: list[str] = field(default_factory=list)
    failures: int = 0
    """So many of the next calls fail."""
    lost: bool = False
    """Whether all slices are preempted."""
    appears_after: int = 0
    """How many looks come before a resource that was created without an answer."""
    late: str = ""

    def at(self, where: Where) -> "MemoryApi":
        return self

    def state(self, name: str) -> tuple[str, str]:
        self._count()
        if name not in self.held:
            return "GONE", ""
        return ("SUSPENDED" if self.lost else "ACTIVE"), ""

    def node(self, name: str) -> Any:
        return SimpleNamespace(state=SimpleNamespace(name="READY"))

    def create(self, name: str, resource: Any, what: str) -> None:
        """The answer is lost; the resource appears later."""
        self.late = name
        raise HostError(f"Cloud TPU, {what}: DeadlineExceeded")

    def delete(self, name: str) -> bool:
        self._count()
        if self.late == name:
            self.appears_after -= 1
            if self.appears_after < 0:
                self.held[name], self.late = "", ""
        if self.held.pop(name, None) is None:
            return False
        self.deleted.append(name)
        return True

    def labelled(self, label: str) -> list[str]:
        return [name for name, own in self.held.items() if own == label]

    def _count(self) -> None:
        if self.failures:
            self.failures -= 1
            raise HostError("Cloud TPU: ServiceUnavailable")


@dataclass
class PlayedRun:
    """A run on slices; `over` and `brings` are called as the keeper asks."""

    pod: TpuSliceRequest
    over: Callable[[], bool] = lambda: False
    brings: Callable[[], object] = lambda: None
    verbs: list[str] = field(default_factory=list)
    state: str = "running"
    launched_in: str = "/"

    @property
    def settings(self) -> Any:
        return SimpleNamespace(config=str(self.pod.folder / "ssh_config"))

    def is_over(self) -> bool:
        return self.over()

    def copy(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        (folder / "state.json").write_text(json.dumps({"state": self.state}))
        (folder / "metrics.jsonl").write_text('{"step": 7, "loss": 1.0}\n')

    def fetch(self, folder: Path) -> None:
        self.brings()
        (folder / "state.json").write_text(json.dumps({"state": self.state}))
        self.localize(folder)

    def localize(self, folder: Path) -> None:
        (folder / REMOTE).unlink(missing_ok=True)

    @contextmanager
    def start(self, verb: str, *, terminal: bool) -> Iterator[Any]:
        self.verbs.append(verb)
        yield SimpleNamespace(wait=lambda timeout: 0)


def cluster_file(folder: Path, *, project: str = "mine", more: str = "") -> Path:
    """FOLDER/pod.yaml; `more`: keys of its provider, after a comma."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "pod.yaml"
    path.write_text(CLUSTER.format(project=project, more=more))
    return path


def make_pod(file: Path, run: Path, **note: Any) -> TpuSliceRequest:
    """A pod that is written down; nothing is asked for."""
    pod = TpuSliceRequest.of(
        find_cluster(str(file)).value, ClusterRef(name=str(file)), run, losses=0
    )
    pod.note = pod.note.model_copy(update=note)
    pod.folder.mkdir(parents=True)
    write_where(pod.folder, pod.wanted.where)
    (pod.folder / "state.json").write_text(pod.note.model_dump_json())
    return pod


def started(call: Callable[[], object]) -> threading.Thread:
    """`call` in a thread of its own."""
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    return thread


def ended(call: Callable[[], object]) -> bool:
    """Whether `call` returns, in a thread of its own."""
    thread = started(call)
    thread.join(60.0)
    return not thread.is_alive()
