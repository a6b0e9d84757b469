"""What this machine remembers of slices: a folder each, from before they are asked for.

The folder's name is the name of the queued resource. `where.json` is written once and has no schema
that changes, so that slices can be given back where `state.json` cannot be read.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel

from launcher.cluster.schema import Cluster, ClusterRef
from launcher.core.errors import ProviderError
from launcher.core.files import read_object, state_folder
from launcher.providers.gcp.request import Where

STATE, WHERE = "state.json", "where.json"
Stage = Literal["asked", "running", "kept", "ending"]


class UnreadableNoteError(ProviderError):
    """A note cannot be read. Its slices may still be there."""


class SliceRecord(BaseModel):
    """What is known of a pod, in its folder."""

    resource_id: str
    cluster: Cluster
    """Its provider names project and zone: gcloud's configuration may be another one later."""
    words: ClusterRef
    """What it was asked for with."""
    cluster_key: str
    """Which cluster that was, see `cluster_key`."""
    run: str
    """The run's folder, here."""
    launched_in: str
    """The folder that the command was typed in, here."""
    asked_at: float
    is_seen: bool = False
    """Whether the API has ever shown the resource. Until then it may still appear."""
    active_at: float | None = None
    """When its slices were there, which is when they began to cost."""
    losses: int = 0
    """How often the run's hosts were preempted before."""
    stage: Stage = "asked"
    """`running`: a run is on it; `kept`: it is over, and the hosts are kept until `delete_at`;
    `ending`: it is to be given back, and no other one is wanted."""
    delete_at: float | None = None


def pods_folder() -> Path:
    return state_folder() / "pods"


def is_noted(folder: Path) -> bool:
    """False once the pod is given back."""
    return (folder / STATE).exists()


def read_note(folder: Path) -> SliceRecord | None:
    """None: it is given back. Raises UnreadableNoteError."""
    path = folder / STATE
    try:
        return SliceRecord.model_validate_json(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        why = "it is empty" if _is_empty(path) else _first_line(error)
        raise UnreadableNoteError(f"{path} cannot be read: {why}") from None


def list_slices() -> Iterator[tuple[Path, SliceRecord]]:
    """All whose note can be read, the oldest first."""
    found = []
    for folder in pods_folder().glob("*"):
        try:
            note = read_note(folder)
        except UnreadableNoteError:
            continue  # see `list_unreadable_slices`
        if note is not None:
            found.append((folder, note))
    yield from sorted(found, key=lambda pod: pod[1].asked_at)


def list_unreadable_slices() -> dict[Path, str]:
    """The folders whose note cannot be read, with the reason."""
    found = {}
    for folder in sorted(pods_folder().glob("*")):
        try:
            read_note(folder)
        except UnreadableNoteError as error:
            found[folder] = str(error)
    return found


def write_where(folder: Path, where: Where) -> None:
    """Beside the note, before the request."""
    (folder / WHERE).write_text(where.model_dump_json(), encoding="utf-8")


def where_of(folder: Path) -> Where:
    """Where the slices of an unreadable note are. Raises UnreadableNoteError with what to do."""
    try:
        return Where.model_validate(read_object(folder / WHERE) or _provider(folder))
    except ValueError:
        raise UnreadableNoteError(
            f"{folder}: neither {STATE} nor {WHERE} can be read, so project and zone of "
            f"{folder.name} are not known. Delete it there (gcloud compute tpus queued-resources "
            f"delete {folder.name} --force --project PROJECT --zone ZONE), then delete this folder"
        ) from None


def _provider(folder: Path) -> Any:
    """Returns the provider's section of a note whose schema is unknown."""
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
