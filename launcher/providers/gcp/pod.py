"""The slices of one run: requests them, waits for them, configures SSH, and releases them.

The record of the slices (slice_records.py) is written before the request, so that any later process
can release them. Its folder also holds the SSH key that the hosts accept.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from launcher.cluster.gcp import Gcp
from launcher.cluster.schema import Cluster, ClusterRef, cluster_key
from launcher.cluster.ssh import Ssh
from launcher.core.errors import HostError, RefusedError
from launcher.core.files import is_locked, lock, replace_file
from launcher.core.formatting import format_seconds
from launcher.core.wait import wait_until
from launcher.providers.gcp.client import LOST_NODE, OVER, Api
from launcher.providers.gcp.request import (
    TpuRequest,
    cluster_label,
    labels,
    new_id,
    node_ids,
    request,
    wanted,
)
from launcher.providers.gcp.slice_records import (
    STATE,
    WHERE,
    SliceRecord,
    Stage,
    UnreadableRecordError,
    is_recorded,
    pods_folder,
    read_record,
    where_of,
    write_where,
)

T = TypeVar("T")
POLL_INTERVAL_S = 2.0
SILENT_S = 600.0
"""Seconds without an answer from the API that a wait tolerates: a place in the queue may be worth
days."""
STATUS_INTERVAL_S = 30.0
"""Seconds between two status reports of a wait while nothing changes."""
LATE_S = 600.0
"""Seconds in which slices may still appear after a request that got no answer."""
LATE = (
    f"a process on this machine releases slices that appear within {LATE_S / 60:.0f} minutes; keep "
    "the machine running until then"
)
UNWANTED = "`launch down` has released the hosts"
WAITING = {
    "CREATING": "the request is being checked",
    "ACCEPTED": "in the queue",
    "WAITING_FOR_RESOURCES": "in the queue for capacity",
    "PROVISIONING": "the hosts are being created",
    "ACTIVE": "the hosts are starting",
}


class TpuSliceRequest:
    """One request for a run's slices. After a preemption a new request replaces it."""

    def __init__(self, folder: Path, note: SliceRecord) -> None:
        """Raises HostError when the API is unusable, or project or zone are unknown."""
        self.folder, self.note = folder, note
        self.wanted: TpuRequest = wanted(note.cluster)
        self._api = Api(self.wanted.where)
        self._lock: IO[str] | None = None

    @classmethod
    def of(cls, cluster: Cluster, cluster_ref: ClusterRef, run: Path, losses: int) -> Self:
        """Returns a request that is not sent yet. Raises HostError as the constructor does."""
        resource_id, found = new_id(run.name), wanted(cluster)
        place = {"project": found.project, "zone": found.zone}
        provider = found.settings.model_copy(update=place)
        note = SliceRecord(
            resource_id=resource_id, cluster=cluster.model_copy(update={"provider": provider}),
            cluster_ref=cluster_ref.lasting(), cluster_key=cluster_key(cluster_ref.name),
            run=str(run), launched_in=str(Path.cwd()), asked_at=time.time(), losses=losses,
        )  # fmt: skip
        return cls(pods_folder() / resource_id, note)

    def hold(self) -> bool:
        """Claims the slices for this process until it ends; False when another holds them."""
        self._lock = (self.folder / "lock").open("w")
        return lock(self._lock)

    @property
    def is_wanted(self) -> bool:
        """Whether the slices are still wanted; False once `launch down` has ended them."""
        try:
            note = read_record(self.folder)
        except UnreadableRecordError:
            return True  # the record in memory counts
        return note is not None and note.stage != "ending"

    def set(self, stage: Stage, delete_at: float | None = None) -> None:
        """Records the stage. Raises HostError when `launch down` has ended the slices."""
        if stage != "ending" and not self.is_wanted:
            raise HostError(UNWANTED)
        self._write(stage=stage, delete_at=delete_at)

    def _write(self, **changes: Any) -> None:
        self.note = self.note.model_copy(update=changes)
        try:
            replace_file(self.folder / STATE, self.note.model_dump_json(indent=2))
        except FileNotFoundError:
            raise HostError(UNWANTED) from None

    def write_record(self) -> None:
        """Writes key and record before the request: recorded slices can always be released."""
        self.folder.mkdir(parents=True, mode=0o700)
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "slipway"]
        try:
            subprocess.run([*key, "-f", str(self.folder / "key")], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            shutil.rmtree(self.folder)
            raise HostError(f"ssh-keygen cannot create the hosts' key: {error}") from None
        write_where(self.folder, self.wanted.where)
        self._write(stage="asked", asked_at=time.time())

    def send_request(self) -> None:
        """Sends the request. Raises HostError with the API's error."""
        name, note = self.note.resource_id, self.note
        try:
            key = self._public_key.read_text(encoding="utf-8").strip()
        except OSError as error:
            self.forget()
            raise HostError(f"provider.ssh_key: its public key cannot be read: {error}") from None
        asked = request(self.wanted, name, key, labels(note.cluster_key, Path(note.run).name))
        try:
            self._api.create(name, asked, str(self.wanted))
        except RefusedError:
            self.forget()
            raise
        except HostError as error:
            raise HostError(f"{error}\n  {name}: {LATE}") from None

    def wait(self, on_status: Callable[[str], None]) -> Ssh:
        """Waits until all slices are ready and returns the SSH settings of their hosts.

        The wait in a queue may take days. Raises HostError when the slices can no longer come,
        their hosts stay unreachable, or the API does not answer.
        """
        began, reported, reported_at = time.monotonic(), "", 0.0
        while True:
            state, why = _retry(lambda: self._api.state(self.note.resource_id))
            self._record_state(state)
            if state in OVER or state == "GONE":
                raise self._refused(state, why)
            if state == "ACTIVE" and (addresses := self._addresses()):
                return self._reached(addresses)
            self._refuse_unreachable()
            waited_s = time.monotonic() - began
            if state != reported or waited_s - reported_at >= STATUS_INTERVAL_S:
                reported, reported_at = state, waited_s
                on_status(
                    f"{self.wanted}: {WAITING.get(state, state.lower())} ({state}, "
                    f"{format_seconds(waited_s)})"
                )
            time.sleep(POLL_INTERVAL_S)

    def is_lost(self) -> bool:
        """Returns whether any slice was lost. Raises HostError when the API fails."""
        if self._api.state(self.note.resource_id)[0] != "ACTIVE":
            return True
        nodes = map(self._api.node, self._node_ids)
        return any(node is None or node.state.name in LOST_NODE for node in nodes)

    @property
    def has_keeper(self) -> bool:
        """Whether a live process manages the slices."""
        return is_locked(self.folder / "lock")

    @property
    def is_over_time(self) -> bool:
        """Whether the slices have been active for longer than provider.max_hours."""
        hours, since = self._settings.max_hours, self.note.active_at
        return hours is not None and since is not None and time.time() > since + 3600 * hours

    @contextmanager
    def ending(self) -> Iterator[bool]:
        """Locks the release, one process at a time; yields False when another has released them.

        The lock is on a file that already exists, so that a full disk cannot prevent the release.
        """
        try:
            file = (self.folder / WHERE).open("rb")
        except FileNotFoundError:
            yield False
            return
        with file:
            wait_until(lambda: lock(file), poll_interval_s=POLL_INTERVAL_S)
            yield is_recorded(self.folder)

    def delete(self) -> bool:
        """Deletes all slices. Returns False when they were never seen and may still appear.

        Raises HostError when they still exist.
        """
        return self._api.delete(self.note.resource_id) or self.note.is_seen

    def release(self) -> bool:
        """Deletes all slices and their record.

        Returns False when `delete` does; the keeper then tries again. Raises HostError when the
        slices still exist.
        """
        if not is_recorded(self.folder):
            return True
        if not self.delete():
            with suppress(OSError):
                self.set("ending")
            return False
        self.forget()
        return True

    def release_late(self) -> None:
        """Calls `release` until no slices can appear any more.

        The time counts from now: the process that sent the request has ended or given up.
        """
        if not wait_until(self.release, LATE_S, poll_interval_s=POLL_INTERVAL_S):
            self.forget()

    def forget(self) -> None:
        """Deletes the folder; call it only when no slices are held."""
        forget(self.folder)

    def _record_state(self, state: str) -> None:
        """Records the first time that the API shows the resource, or shows it as active."""
        if state != "GONE" and not self.note.is_seen:
            self._write(is_seen=True)
        if state == "ACTIVE" and self.note.active_at is None:
            self._write(active_at=time.time())

    def _refuse_unreachable(self) -> None:
        """Raises HostError when slices cost money but their hosts have not come up in time."""
        minutes, since = self._settings.unreachable_minutes, self.note.active_at
        if since is not None and time.time() > since + 60 * minutes:
            raise HostError(
                f"Cloud TPU: {self.wanted}: active for {minutes:g} minutes, but its hosts are not "
                "ready (provider.unreachable_minutes)"
            )

    @property
    def _public_key(self) -> Path:
        key = self._settings.ssh_key
        return Path(f"{Path(key).expanduser()}.pub") if key else self.folder / "key.pub"

    @property
    def _settings(self) -> Gcp:
        return self.wanted.settings

    @property
    def _node_ids(self) -> list[str]:
        return node_ids(self.note.resource_id, self.wanted.slices)

    def _addresses(self) -> list[tuple[str, str]]:
        """Returns each host's name and address in rank order; empty until all are ready."""
        found = []
        for number, node_id in enumerate(self._node_ids):
            node = _retry(partial(self._api.node, node_id))
            if node is None or node.state.name != "READY":
                return []
            if len(node.network_endpoints) != self.wanted.hosts_per_slice:
                raise HostError(
                    f"{node_id} has {len(node.network_endpoints)} hosts, but the plan expects "
                    f"{self.wanted.hosts_per_slice} per slice. Set `hosts` in the cluster file"
                )
            for worker, endpoint in enumerate(node.network_endpoints):
                inside = self._settings.internal_ips
                ip = endpoint.ip_address if inside else endpoint.access_config.external_ip
                slice_ = f"slice-{number}-" * (self.wanted.slices > 1)
                found.append((f"{slice_}worker-{worker}", ip))
        return found

    def _reached(self, addresses: list[tuple[str, str]]) -> Ssh:
        """Writes an SSH configuration, which includes the user's; learns host keys once."""
        known = self.folder / "known_hosts"
        hosts = "".join(
            f"Host {name}\n  HostName {ip}\n  HostKeyAlias {self.note.resource_id}-{name}\n"
            f'  UserKnownHostsFile "{known}"\n  StrictHostKeyChecking accept-new\n'
            f"  IdentitiesOnly yes\n"
            for name, ip in addresses
        )
        config = self.folder / "ssh_config"
        replace_file(config, f"{hosts}Host *\n  Include ~/.ssh/config\n")
        settings = self._settings
        return Ssh(
            kind="ssh",
            hosts=[name for name, _ in addresses],
            user=self.wanted.user,
            ssh_key=settings.ssh_key or str(self.folder / "key"),
            proxy_jump=settings.proxy_jump,
            config=str(config),
            remote_dir=settings.remote_dir,
        )

    def _refused(self, state: str, why: str) -> HostError:
        came = f"{state}: {why}" if why else state
        return HostError(
            f"Cloud TPU did not grant {self.wanted}: {came}\n"
            "  Request another zone, fewer chips, or another tier (provider.spot, "
            "provider.reservation)"
        )


def _retry(query: Callable[[], T]) -> T:
    """Returns the API's answer; retries for SILENT_S without one. Raises HostError."""
    deadline = time.monotonic() + SILENT_S
    while True:
        try:
            return query()
        except RefusedError:
            raise
        except HostError:
            if time.monotonic() > deadline:
                raise
        time.sleep(POLL_INTERVAL_S)


def release_unreadable(folder: Path) -> None:
    """Deletes the slices of an unreadable record. Raises HostError when they still exist.

    A copy of the run stays in the folder: only the record names the run.
    """
    Api(where_of(folder)).delete(folder.name)
    if not (folder / "copy").is_dir():
        forget(folder)
        return
    (folder / STATE).unlink(missing_ok=True)


def labelled(cluster: Cluster, key: str) -> list[str]:
    """Returns the slices that this user and machine requested with a cluster, recorded or not.

    Raises HostError when the API cannot be queried.
    """
    return Api(wanted(cluster).where).labelled(cluster_label(key))


def release_unrecorded(cluster: Cluster, resource_id: str) -> None:
    """Deletes slices that have no record. Raises HostError when they still exist."""
    Api(wanted(cluster).where).delete(resource_id)


def forget(folder: Path) -> None:
    """Deletes the folder of slices; call it only when none are held."""
    (folder / STATE).unlink(missing_ok=True)  # first: the rest means nothing without it
    shutil.rmtree(folder, ignore_errors=True)
