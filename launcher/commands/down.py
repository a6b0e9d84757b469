"""Resources that `launch down` finds: a cluster that is kept warm, and slices of Cloud TPU."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from rich.console import Console

from launcher.cluster.schema import Cluster, cluster_key, find_cluster, is_path
from launcher.commands.held_slices import describe
from launcher.core.errors import HostError, MissingClientError, SlipwayError
from launcher.executors.gcp import give_up, start_keeper
from launcher.executors.local_run import LocalRunHandle
from launcher.providers.gcp.pod import (
    LATE,
    TpuSliceRequest,
    labelled,
    release_unreadable,
    release_unrecorded,
)
from launcher.providers.gcp.request import Where, wanted
from launcher.providers.gcp.slice_records import SliceRecord, list_slices, list_unreadable_slices
from launcher.providers.local import warm
from launcher.runs.folder import is_alive
from trainer.contract.config.loader import ConfigError

OnStatus = Callable[[str], None]


class ToEnd(Protocol):
    """A resource that `launch down` ends."""

    @property
    def name(self) -> str: ...

    @property
    def is_asked(self) -> bool:
        """Whether ending it loses work or hosts, so that the user must confirm."""
        ...

    def end(self, console: Console) -> str:
        """Ends it, waits until it is gone, and returns the text to print. Raises HostError."""
        ...


@dataclass(frozen=True)
class WarmCluster:
    """A simulated cluster that `launch up` keeps warm."""

    name: str

    @property
    def is_asked(self) -> bool:
        return bool(self._runs)

    def end(self, console: Console) -> str:
        for run in self._runs:
            try:
                LocalRunHandle(run).stop()
            except SlipwayError as error:
                raise HostError(f"{error}; the cluster stays up") from None
        warm.end(self.name)
        return f"the cluster {self.name} is ended"

    def __str__(self) -> str:
        runs = ", ".join(map(str, self._runs))
        return f"the cluster {self.name}; first it stops, with a checkpoint: {runs}"

    @property
    def _runs(self) -> list[Path]:
        return [run for run in warm.users(self.name) if is_alive(run)]


@dataclass(frozen=True)
class NotedPod:
    """Slices of Cloud TPU that this machine has a record of."""

    folder: Path
    note: SliceRecord
    is_asked = True

    @property
    def name(self) -> str:
        return self.note.resource_id

    def end(self, console: Console) -> str:
        pod = TpuSliceRequest(self.folder, self.note)
        if give_up(pod, lambda text: console.print(text, markup=False)):
            return f"{self.name} is given back"
        if not pod.has_keeper:
            start_keeper(self.folder)
        return f"{self.name}: the API has not shown it yet: {LATE}"

    def __str__(self) -> str:
        return describe(self.note)


@dataclass(frozen=True)
class UnreadablePod:
    """Slices whose record cannot be read."""

    folder: Path
    why: str
    is_asked = True

    @property
    def name(self) -> str:
        return self.folder.name

    def end(self, console: Console) -> str:
        release_unreadable(self.folder)
        return f"{self.name} is given back"

    def __str__(self) -> str:
        return f"{self.name}: {self.why}"


@dataclass(frozen=True)
class UnnotedPod:
    """Slices that carry the label of a cluster but have no record on this machine."""

    name: str
    cluster: Cluster
    is_asked = True

    def end(self, console: Console) -> str:
        release_unrecorded(self.cluster, self.name)
        return f"{self.name} is given back"

    def __str__(self) -> str:
        return f"{self.name}: asked for with this cluster; this machine has no note of it"


def to_end(given: str, on_status: OnStatus) -> list[ToEnd]:
    """Lists everything that a name or path refers to, and prints warnings."""
    key, stem = cluster_key(given), Path(given).stem
    cluster = _gcp_cluster(given)
    found: list[ToEnd] = []
    if warm.is_of(stem, key) or (not is_path(given) and warm.is_up(stem)):
        found.append(WarmCluster(stem))
    found += _recorded(given, key, cluster, on_status)
    labels = set() if cluster is None else _labelled(cluster, key, on_status)
    found += _unreadable(given, labels, on_status)
    known = {thing.name for thing in found}
    if cluster is not None:
        found += [UnnotedPod(name, cluster) for name in sorted(labels - known)]
    return found


def _recorded(given: str, key: str, cluster: Cluster | None, on_status: OnStatus) -> list[ToEnd]:
    """Lists recorded slices: those of that name, or those of the cluster in its current project."""
    found: list[ToEnd] = []
    here = _where(cluster)
    for folder, note in list_slices():
        if note.resource_id == given:
            return [NotedPod(folder, note)]
        if note.cluster_key != key:
            continue
        where = _where(note.cluster)
        if here is None or where == here:
            found.append(NotedPod(folder, note))
        else:
            on_status(
                f"warning: {note.resource_id} is in {where}, and {given} now means {here}: it "
                f"stays. launch down {note.resource_id} gives it back"
            )
    return found


def _unreadable(given: str, labels: set[str], on_status: OnStatus) -> list[ToEnd]:
    """Lists slices whose record is unreadable, by their name or the cluster's label."""
    found: list[ToEnd] = []
    for folder, why in list_unreadable_slices().items():
        if folder.name == given or folder.name in labels:
            found.append(UnreadablePod(folder, why))
            continue
        on_status(f"warning: {why}: skipped. launch down {folder.name} gives its slices back")
    return found


def _labelled(cluster: Cluster, key: str, on_status: OnStatus) -> set[str]:
    """Returns the names of the slices that carry the cluster's label."""
    try:
        return set(labelled(cluster, key))
    except MissingClientError:
        return set()  # without the client, no slices were requested
    except HostError as error:
        on_status(f"warning: slices were not looked for by their label: {error}")
        return set()


def _gcp_cluster(given: str) -> Cluster | None:
    """Returns the current cluster file, or None when it is unreadable or not for Cloud TPU."""
    try:
        cluster = find_cluster(given).value
    except ConfigError:
        return None
    return cluster if cluster.provider.rents_slices else None


def _where(cluster: Cluster | None) -> Where | None:
    """Returns None when the project or the zone is not known now."""
    try:
        return None if cluster is None else wanted(cluster).where
    except HostError:
        return None
