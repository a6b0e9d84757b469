"""This machine's records of slices: a folder per queued resource, created before the request.

The folder's name is the name of the queued resource. `where.json` is written once and its schema
never changes, so that slices can be released when `state.json` cannot be read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from launcher.cluster.schema import Cluster, ClusterRef
from launcher.core.errors import HostError
from launcher.core.files import read_object, state_folder
from launcher.providers.gcp.request import Where

STATE, WHERE = "state.json", "where.json"
Stage = Literal["asked", "running", "kept", "ending"]


class UnreadableRecordError(HostError):
    """A record cannot be read. Its slices may still exist."""


class SliceRecord(BaseModel):
    """The record of the slices of one queued resource, stored in its folder."""

    resource_id: str
    cluster: Cluster
    """The cluster, with project and zone filled in: gcloud's configuration may change later."""
    cluster_ref: ClusterRef
    """Reference by which the user named the cluster."""
    cluster_key: str
    """Key of the cluster; see `cluster_key`."""
    run: str
    """The run's folder on this machine."""
    launched_in: str
    """Working directory of the command on this machine."""
    asked_at: float
    is_seen: bool = False
    """Whether the API has ever shown the resource. Until then it may still appear."""
    active_at: float | None = None
    """Unix time at which the slices became active and began to cost money."""
    losses: int = 0
    """Number of earlier preemptions of the run's hosts."""
    stage: Stage = "asked"
    """`asked`: requested. `running`: a run uses the slices. `kept`: the run is over, and the hosts
    are kept until `delete_at`. `ending`: the slices are to be released and not replaced."""
    delete_at: float | None = None


def pods_folder() -> Path:
    return state_folder() / "pods"


def is_recorded(folder: Path) -> bool:
    """Returns whether the record exists; False once the slices are released."""
    return (folder / STATE).exists()


def read_record(folder: Path) -> SliceRecord | None:
    """Returns a record, None once its slices are released. Raises UnreadableRecordError."""
    path = folder / STATE
    try:
        return SliceRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = "it is empty" if _is_empty(path) else _first_line(error)
        raise UnreadableRecordError(f"{path} cannot be read: {why}") from None


def list_slices() -> Iterator[tuple[Path, SliceRecord]]:
    """Yields all readable records with their folders, oldest first."""
    found = []
    for folder in pods_folder().glob("*"):
        try:
            note = read_record(folder)
        except UnreadableRecordError:
            continue  # see `list_unreadable_slices`
        if note is not None:
            found.append((folder, note))
    yield from sorted(found, key=lambda pod: pod[1].asked_at)


def list_unreadable_slices() -> dict[Path, str]:
    """Returns the folders of all unreadable records, with the reasons."""
    found = {}
    for folder in sorted(pods_folder().glob("*")):
        try:
            read_record(folder)
        except UnreadableRecordError as error:
            found[folder] = str(error)
    return found


def write_where(folder: Path, where: Where) -> None:
    """Writes project and zone beside the record, before the request."""
    (folder / WHERE).write_text(where.model_dump_json(), encoding="utf-8")


def where_of(folder: Path) -> Where:
    """Locates an unreadable record's slices. Raises UnreadableRecordError with a remedy."""
    try:
        return Where.model_validate(read_object(folder / WHERE) or _provider(folder))
    except ValueError:
        raise UnreadableRecordError(
            f"{folder}: neither {STATE} nor {WHERE} can be read, so project and zone of "
            f"{folder.name} are not known. Delete it there (gcloud compute tpus queued-resources "
            f"delete {folder.name} --force --project PROJECT --zone ZONE), then delete this folder"
        ) from None


def _provider(folder: Path) -> Any:
    """Returns the provider's section of a record whose schema is unknown."""
    cluster = read_object(folder / STATE).get("cluster")
    return cluster.get("provider") if isinstance(cluster, dict) else None


def _is_empty(path: Path) -> bool:
    try:
        return not path.stat().st_size
    except OSError:
        return False


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    return " ".join(str(error).split())[:200]
