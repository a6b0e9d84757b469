"""A run whose folder is on another machine, as this machine remembers it."""

import hashlib
import io
import json
import shlex
import socket
import subprocess
import tarfile
from pathlib import Path, PurePosixPath
from typing import ClassVar, Self

from pydantic import computed_field

from launcher.cluster import ClusterWords, Ssh
from launcher.files import read_object, replace_file
from launcher.providers.note import Note
from launcher.providers.ssh.connection import Host, hosts_of
from launcher.providers.ssh.everywhere import everywhere
from launcher.providers.ssh.provision import Provisioned, shell
from launcher.runs import REMOTE

ASK_TIMEOUT_S, COPY_TIMEOUT_S = 60.0, 600.0
LEFT_THERE = ("checkpoints", ".*")
"""What is of use on the head only."""


class RemoteRun(Note):
    """Where a run is, and how a command of `launch` is typed there; beside the run's copy here."""

    FILE: ClassVar = REMOTE

    settings: Ssh
    name: str
    runs: str
    """On the hosts: what holds the run's folder."""
    environment: Provisioned
    words: ClusterWords
    """What the cluster was asked for with, here."""
    launched_in: str
    """The folder that the command was typed in, here."""

    @classmethod
    def of(cls, folder: Path, settings: Ssh, provisioned: Provisioned, words: ClusterWords) -> Self:
        """A run that is to have its copy in `folder`: other folders' runs have other places."""
        here = f"{socket.gethostname()}:{folder.parent}"
        place = hashlib.sha256(here.encode()).hexdigest()[:8]
        runs = provisioned.base / "runs" / place / "runs"
        return cls(
            settings=settings,
            name=folder.name,
            runs=str(runs),
            environment=provisioned,
            words=words,
            launched_in=str(Path.cwd()),
        )

    @computed_field
    @property
    def head_name(self) -> str:
        """For those who read the file without this class."""
        return self.head.name

    @property
    def head(self) -> Host:
        return hosts_of(self.settings)[0]

    def launch(self, verb: str, *words: str, terminal: bool) -> int:
        """A command of `launch` about this run, on the head; returns its exit code.

        SSH_FAILED: the connection could not be had or was lost.
        """
        with self.start(verb, *words, terminal=terminal) as process:
            return process.wait()

    def start(self, verb: str, *words: str, terminal: bool) -> subprocess.Popen[bytes]:
        """See `launch`; does not wait for its end."""
        typed = self._command(verb, *words)
        return subprocess.Popen(self.head.words(typed, terminal=terminal))

    def is_over(self) -> bool:
        """Whether nobody runs it any more. Raises ProviderError where the head cannot be asked."""
        command = self._command("status", "-o", "json")
        (answer,) = everywhere([self.head], lambda _: self.head.run(command, ASK_TIMEOUT_S))
        return not json.loads(answer[answer.index("{") :])["alive"]

    def bring_home(self, folder: Path) -> None:
        """Copy it here, all but its checkpoints: from now on it is a run of here.

        Raises ProviderError where the head does not give it.
        """
        self.copy(folder)
        self.settle(folder)

    def settle(self, folder: Path) -> None:
        """What was copied into a folder is a run of here."""
        here = {"cluster": self.words.model_dump(), "launched_in": self.launched_in}
        state = read_object(folder / "state.json")
        replace_file(folder / "state.json", json.dumps({**state, **here}))
        (folder / REMOTE).unlink(missing_ok=True)

    def copy(self, folder: Path) -> None:
        """What the run's folder has there, but for its checkpoints. Raises ProviderError."""
        command = _packing(f"{self.runs}/{self.name}")
        everywhere([self.head], lambda _: self.head.fetch(command, folder, COPY_TIMEOUT_S))

    def send(self, folder: Path) -> None:
        """Such a copy to a head that does not have it: from there the run goes on.

        Raises ProviderError.
        """
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as archive:
            for path in sorted(folder.iterdir()):
                if path.name not in (REMOTE, "checkpoints") and not path.name.startswith("."):
                    archive.add(path, path.name)
        command, data = _unpacking(f"{self.runs}/{self.name}"), packed.getvalue()
        everywhere([self.head], lambda _: self.head.run(command, COPY_TIMEOUT_S, data))

    def _command(self, verb: str, *words: str) -> str:
        """Typed where `runs` is, as here: what it says of further commands is then true here."""
        typed = PurePosixPath(self.runs).parent
        return self.environment.command("launcher", verb, self.name, *words, folder=typed)


def _packing(folder: str) -> str:
    """For a host's shell: what is in a folder as a compressed tar file."""
    left_out = shlex.join(f"--exclude=./{name}" for name in LEFT_THERE)
    return shell(f"cd {shlex.quote(folder)} && tar -czf - {left_out} .")


def _unpacking(folder: str) -> str:
    """For a host's shell: the other way round."""
    there = shlex.quote(folder)
    return shell(f"umask 077; mkdir -p {there} && cd {there} && tar -xzf -")
