"""The slices of one run: asked for, waited for, reached, given back.

A folder among the things that Slipway remembers says what there is, from before it is asked for
until it is gone, so that whoever comes later can give it back. It has the key that the hosts let
in, which goes with them.
"""

import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Literal, Self, TypeVar

from pydantic import BaseModel

from launcher.cluster import Cluster, ClusterWords, Gcp, Ssh
from launcher.display import format_seconds
from launcher.files import lock, replace_file, state_folder
from launcher.providers.errors import ProviderError
from launcher.providers.gcp.api import LOST_NODE, OVER, Api, RefusedError
from launcher.providers.gcp.request import new_id, node_ids, request
from launcher.providers.gcp.settings import Wanted, wanted

T = TypeVar("T")
LOOK_S = 2.0
SILENT_S = 600.0
"""How long the API may give no answer while hosts are waited for: a place in the queue may be worth
days."""
TELL_S = 30.0
"""How often a wait is told of anew, where nothing changes."""
VISIBLE_S = 30.0
"""After a request without an answer: then what it has made is there to be seen."""
STATE = "state.json"
WAITING = {
    "CREATING": "the request is looked at",
    "ACCEPTED": "in the queue",
    "WAITING_FOR_RESOURCES": "in the queue for capacity",
    "PROVISIONING": "the hosts are being made",
    "ACTIVE": "the hosts are starting",
}


Stage = Literal["asked", "running", "kept", "ending"]


class Note(BaseModel):
    """What is known of a pod, in its folder."""

    resource_id: str
    cluster: Cluster
    words: ClusterWords
    """What it was asked for with."""
    run: str
    """The run's folder, here."""
    asked_at: float
    losses: int = 0
    """How often the run's hosts were preempted before."""
    stage: Stage = "asked"
    """`running`: a run is on it; `kept`: it is over, and the hosts are kept until `delete_at`;
    `ending`: it is to be given back, and no other one is wanted."""
    delete_at: float | None = None


class Pod:
    """Of one run, at one time: a preempted one is given back, and another is asked for."""

    def __init__(self, folder: Path, note: Note) -> None:
        """Raises ProviderError where the API cannot be used, or project or zone are not known."""
        self.folder, self.note = folder, note
        self.wanted: Wanted = wanted(note.cluster)
        self._api = Api(self.wanted)
        self._lock: IO[str] | None = None

    @classmethod
    def of(cls, cluster: Cluster, words: ClusterWords, run: Path, losses: int) -> Self:
        """One that is not asked for yet. Raises ProviderError, see above."""
        resource_id = new_id(run.name)
        note = Note(
            resource_id=resource_id, cluster=cluster, words=words.lasting(), run=str(run),
            asked_at=time.time(), losses=losses,
        )  # fmt: skip
        return cls(_pods() / resource_id, note)

    def hold(self) -> bool:
        """Say that this process looks after it, until it ends; False: another one does."""
        self._lock = (self.folder / "lock").open("w")
        return lock(self._lock)

    @property
    def is_wanted(self) -> bool:
        """False once `launch down` has said that it is to end."""
        note = read_note(self.folder)
        return note is not None and note.stage != "ending"

    def set(self, stage: Stage, delete_at: float | None = None) -> None:
        """Write down how it stands."""
        self.note = self.note.model_copy(update={"stage": stage, "delete_at": delete_at})
        try:
            replace_file(self.folder / STATE, self.note.model_dump_json(indent=2))
        except FileNotFoundError:
            raise ProviderError("the hosts were given back by `launch down`") from None

    def note_it(self) -> None:
        """Before it is asked for: what is written down can be given back whatever happens."""
        self.folder.mkdir(parents=True, mode=0o700)
        key = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "slipway"]
        try:
            subprocess.run([*key, "-f", str(self.folder / "key")], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError) as error:
            shutil.rmtree(self.folder)
            raise ProviderError(f"ssh-keygen failed; it makes the hosts' key: {error}") from None
        self.note = self.note.model_copy(update={"asked_at": time.time()})
        self.set("asked")

    def ask(self) -> None:
        """Raises ProviderError with what came back."""
        name = self.note.resource_id
        try:
            key = self._public_key.read_text(encoding="utf-8").strip()
            self._api.create(name, request(self.wanted, name, key))
        except OSError as error:
            self._forget()
            raise ProviderError(f"provider.identity: no public key beside it: {error}") from None
        except RefusedError:
            self._forget()
            raise

    def wait(self, on_status: Callable[[str], None]) -> Ssh:
        """Until all slices are there; how their hosts are reached.

        Waits as long as there is hope: a queue may take days. Raises ProviderError where there is
        none any more.
        """
        began, said, said_at = time.monotonic(), "", 0.0
        while True:
            state, why = _patiently(lambda: self._api.state(self.note.resource_id))
            if state in OVER or state == "GONE":
                raise self._refused(state, why)
            if state == "ACTIVE" and (addresses := self._addresses()):
                return self._reached(addresses)
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

    def give_back(self) -> None:
        """Delete all of it, and forget it. Raises ProviderError where it is still there."""
        if read_note(self.folder) is None:
            return
        unsure = self.note.stage in ("asked", "ending")
        age_s = time.time() - self.note.asked_at
        self._api.delete(self.note.resource_id, VISIBLE_S - age_s if unsure else 0.0)
        self._forget()

    def _forget(self) -> None:
        (self.folder / STATE).unlink(missing_ok=True)  # first: the rest says nothing without it
        shutil.rmtree(self.folder, ignore_errors=True)

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


def noted_pods() -> Iterator[tuple[Path, Note]]:
    """All that were asked for and are not known to be gone, the oldest first."""
    folders = _pods().glob("*")
    found = [(folder, note) for folder in folders if (note := read_note(folder))]
    yield from sorted(found, key=lambda pod: pod[1].asked_at)


def read_note(folder: Path) -> Note | None:
    """None: it is given back."""
    try:
        return Note.model_validate_json((folder / STATE).read_text(encoding="utf-8"))
    except OSError:
        return None


def _pods() -> Path:
    return state_folder() / "pods"
