"""The slices of one run: asked for, waited for, reached, given back.

The record of the slices (slice_records.py) is written before the request, so that any later process
can release them. Its folder also has the SSH key that the hosts accept.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Self, TypeVar

from launcher.cluster.schema import Cluster, ClusterRef, Gcp, Ssh, cluster_key
from launcher.core.errors import ProviderError
from launcher.core.files import is_locked, lock, replace_file
from launcher.core.formatting import format_seconds
from launcher.providers.gcp.client import LOST_NODE, OVER, Api, RefusedError
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
    UnreadableNoteError,
    is_noted,
    pods_folder,
    read_note,
    where_of,
    write_where,
)

T = TypeVar("T")
LOOK_S = 2.0
SILENT_S = 600.0
"""How long the API may give no answer while hosts are waited for: a place in the queue may be worth
days."""
TELL_S = 30.0
"""How often a wait is told of anew, where nothing changes."""
LATE_S = 600.0
"""How long slices may still appear after a request that got no answer."""
LATE = (
    f"slices that appear within {LATE_S / 60:.0f} minutes are given back by a process of this "
    "machine, which must stay on until then"
)
UNWANTED = "the hosts were given back by `launch down`"
WAITING = {
    "CREATING": "the request is looked at",
    "ACCEPTED": "in the queue",
    "WAITING_FOR_RESOURCES": "in the queue for capacity",
    "PROVISIONING": "the hosts are being made",
    "ACTIVE": "the hosts are starting",
}


class TpuSliceRequest:
    """Of one run, at one time: a preempted one is given back, and another is asked for."""

    def __init__(self, folder: Path, note: SliceRecord) -> None:
        """Raises ProviderError where the API cannot be used, or project or zone are not known."""
        self.folder, self.note = folder, note
        self.wanted: TpuRequest = wanted(note.cluster)
        self._api = Api(self.wanted.where)
        self._lock: IO[str] | None = None

    @classmethod
    def of(cls, cluster: Cluster, words: ClusterRef, run: Path, losses: int) -> Self:
        """One that is not asked for yet. Raises ProviderError, see above."""
        resource_id, found = new_id(run.name), wanted(cluster)
        place = {"project": found.project, "zone": found.zone}
        provider = found.settings.model_copy(update=place)
        note = SliceRecord(
            resource_id=resource_id, cluster=cluster.model_copy(update={"provider": provider}),
            words=words.lasting(), cluster_key=cluster_key(words.name), run=str(run),
            launched_in=str(Path.cwd()), asked_at=time.time(), losses=losses,
        )  # fmt: skip
        return cls(pods_folder() / resource_id, note)

    def hold(self) -> bool:
        """Say that this process looks after it, until it ends; False: another one does."""
        self._lock = (self.folder / "lock").open("w")
        return lock(self._lock)

    @property
    def is_wanted(self) -> bool:
        """False once `launch down` has said that it is to end."""
        try:
            note = read_note(self.folder)
        except UnreadableNoteError:
            return True  # the note in memory counts
        return note is not None and note.stage != "ending"

    def set(self, stage: Stage, delete_at: float | None = None) -> None:
        """Write the stage down. Raises ProviderError where `launch down` has ended the pod."""
        if stage != "ending" and not self.is_wanted:
            raise ProviderError(UNWANTED)
        self._write(stage=stage, delete_at=delete_at)

    def _write(self, **changes: Any) -> None:
        self.note = self.note.model_copy(update=changes)
        try:
            replace_file(self.folder / STATE, self.note.model_dump_json(indent=2))
        except FileNotFoundError:
            raise ProviderError(UNWANTED) from None

    def note_it(self) -> None:
        """Before it is asked for: what is written down can be given back whatever happens."""
        self.folder.mkdir(parents=True, mode=0o700)
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "slipway"]
        try:
            subprocess.run([*key, "-f", str(self.folder / "key")], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            shutil.rmtree(self.folder)
            raise ProviderError(f"ssh-keygen failed; it makes the hosts' key: {error}") from None
        write_where(self.folder, self.wanted.where)
        self._write(stage="asked", asked_at=time.time())

    def ask(self) -> None:
        """Raises ProviderError with what came back."""
        name, note = self.note.resource_id, self.note
        try:
            key = self._public_key.read_text(encoding="utf-8").strip()
        except OSError as error:
            self.forget()
            raise ProviderError(f"provider.identity: no public key beside it: {error}") from None
        asked = request(self.wanted, name, key, labels(note.cluster_key, Path(note.run).name))
        try:
            self._api.create(name, asked, str(self.wanted))
        except RefusedError:
            self.forget()
            raise
        except ProviderError as error:
            raise ProviderError(f"{error}\n  {name}: {LATE}") from None

    def wait(self, on_status: Callable[[str], None]) -> Ssh:
        """Until all slices are there; how their hosts are reached.

        Waits as long as there is hope: a queue may take days. Raises ProviderError where there is
        none any more.
        """
        began, said, said_at = time.monotonic(), "", 0.0
        while True:
            state, why = _patiently(lambda: self._api.state(self.note.resource_id))
            self._see(state)
            if state in OVER or state == "GONE":
                raise self._refused(state, why)
            if state == "ACTIVE" and (addresses := self._addresses()):
                return self._reached(addresses)
            self._refuse_unreachable()
            waited_s = time.monotonic() - began
            if state != said or waited_s - said_at >= TELL_S:
                said, said_at = state, waited_s
                on_status(
                    f"{self.wanted}: {WAITING.get(state, state.lower())} ({state}, "
                    f"{format_seconds(waited_s)})"
                )
            time.sleep(LOOK_S)

    def is_lost(self) -> bool:
        """Whether any of it was taken away. Raises ProviderError where that cannot be asked."""
        if self._api.state(self.note.resource_id)[0] != "ACTIVE":
            return True
        nodes = map(self._api.node, self._node_ids)
        return any(node is None or node.state.name in LOST_NODE for node in nodes)

    @property
    def has_keeper(self) -> bool:
        """Whether a living process looks after it."""
        return is_locked(self.folder / "lock")

    @property
    def is_over_time(self) -> bool:
        """Whether its slices have been there for longer than provider.max_hours."""
        hours, since = self._settings.max_hours, self.note.active_at
        return hours is not None and since is not None and time.time() > since + 3600 * hours

    @contextmanager
    def ending(self) -> Iterator[bool]:
        """One process at a time ends it; False: another one has.

        The lock is that of a file that is there already: a full disk keeps no slices.
        """
        try:
            file = (self.folder / WHERE).open("rb")
        except FileNotFoundError:
            yield False
            return
        with file:
            while not lock(file):
                time.sleep(LOOK_S)
            yield is_noted(self.folder)

    def delete(self) -> bool:
        """Delete all of it; False: it was never seen, and may still appear.

        Raises ProviderError where it is still there.
        """
        return self._api.delete(self.note.resource_id) or self.note.is_seen

    def release(self) -> bool:
        """Delete all of it, and forget it; False: see `delete`. Then its keeper looks again.

        Raises ProviderError where it is still there.
        """
        if not is_noted(self.folder):
            return True
        if not self.delete():
            with suppress(OSError):
                self.set("ending")
            return False
        self.forget()
        return True

    def release_late(self) -> None:
        """`release`, looking until nothing can appear any more.

        The time counts from now: the process that made the request has ended or given it up.
        """
        deadline = time.monotonic() + LATE_S
        while not self.release():
            if time.monotonic() >= deadline:
                self.forget()
                return
            time.sleep(LOOK_S)

    def forget(self) -> None:
        """Delete the folder, once nothing is held."""
        forget(self.folder)

    def _see(self, state: str) -> None:
        """Write down what the API has shown for the first time."""
        if state != "GONE" and not self.note.is_seen:
            self._write(is_seen=True)
        if state == "ACTIVE" and self.note.active_at is None:
            self._write(active_at=time.time())

    def _refuse_unreachable(self) -> None:
        """Slices that cost, and whose hosts never come up."""
        minutes, since = self._settings.unreachable_minutes, self.note.active_at
        if since is not None and time.time() > since + 60 * minutes:
            raise ProviderError(
                f"Cloud TPU: {self.wanted}: active for {minutes:g} minutes, and its hosts are not "
                "ready (provider.unreachable_minutes)"
            )

    @property
    def _public_key(self) -> Path:
        identity = self._settings.identity
        return Path(f"{Path(identity).expanduser()}.pub") if identity else self.folder / "key.pub"

    @property
    def _settings(self) -> Gcp:
        return self.wanted.settings

    @property
    def _node_ids(self) -> list[str]:
        return node_ids(self.note.resource_id, self.wanted.slices)

    def _addresses(self) -> list[tuple[str, str]]:
        """Name and address of every host in rank order, by slice and worker; empty: not yet."""
        found = []
        for number, node_id in enumerate(self._node_ids):
            node = _patiently(partial(self._api.node, node_id))
            if node is None or node.state.name != "READY":
                return []
            if len(node.network_endpoints) != self.wanted.hosts_per_slice:
                raise ProviderError(
                    f"{node_id} has {len(node.network_endpoints)} hosts, and the plan is for "
                    f"{self.wanted.hosts_per_slice} a slice: say hosts: in the cluster file"
                )
            for worker, endpoint in enumerate(node.network_endpoints):
                inside = self._settings.internal_ips
                ip = endpoint.ip_address if inside else endpoint.access_config.external_ip
                slice_ = f"slice-{number}-" * (self.wanted.slices > 1)
                found.append((f"{slice_}worker-{worker}", ip))
        return found

    def _reached(self, addresses: list[tuple[str, str]]) -> Ssh:
        """By a configuration of their own, then the user's; keys of hosts are learnt once."""
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
            identity=settings.identity or str(self.folder / "key"),
            jump=settings.jump,
            config=str(config),
            folder=settings.folder,
        )

    def _refused(self, state: str, why: str) -> ProviderError:
        came = f"{state}: {why}" if why else state
        return ProviderError(
            f"Cloud TPU has not given {self.wanted}: {came}\n"
            "  ask for another zone, fewer chips, or another tier (provider.spot, "
            "provider.reservation)"
        )


def _patiently(ask: Callable[[], T]) -> T:
    """What the API answers, asked anew while it gives none. Raises ProviderError."""
    deadline = time.monotonic() + SILENT_S
    while True:
        try:
            return ask()
        except RefusedError:
            raise
        except ProviderError:
            if time.monotonic() > deadline:
                raise
        time.sleep(LOOK_S)


def release_unreadable(folder: Path) -> None:
    """Delete the slices of a note that cannot be read. Raises ProviderError.

    A copy of the run stays: only the note says which run it is of.
    """
    Api(where_of(folder)).delete(folder.name)
    if not (folder / "copy").is_dir():
        forget(folder)
        return
    (folder / STATE).unlink(missing_ok=True)


def labelled(cluster: Cluster, key: str) -> list[str]:
    """The slices that this user and machine asked for with a cluster, noted or not.

    Raises ProviderError.
    """
    return Api(wanted(cluster).where).labelled(cluster_label(key))


def release_unrecorded(cluster: Cluster, resource_id: str) -> None:
    """Delete slices without a note. Raises ProviderError."""
    Api(wanted(cluster).where).delete(resource_id)


def forget(folder: Path) -> None:
    """Delete the folder of a pod, once nothing is held."""
    (folder / STATE).unlink(missing_ok=True)  # first: the rest says nothing without it
    shutil.rmtree(folder, ignore_errors=True)
