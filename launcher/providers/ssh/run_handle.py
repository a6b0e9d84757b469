"""A run whose folder is on a machine that is reached by SSH."""

import io
import shlex
import subprocess
import tarfile
from pathlib import Path, PurePosixPath
from typing import Self

from pydantic import computed_field

from launcher.cluster.schema import ClusterRef, Ssh
from launcher.core.errors import ProviderError
from launcher.core.files import parse_object
from launcher.providers.ssh.connection import Host, hosts_of
from launcher.providers.ssh.parallel import everywhere
from launcher.providers.ssh.provision import Provisioned, shell
from launcher.runs.directory import REMOTE
from launcher.runs.remote import NOT_FETCHED, RemoteRunHandle, runs_below

ASK_TIMEOUT_S, COPY_TIMEOUT_S = 60.0, 600.0


class RemoteRun(RemoteRunHandle):
    """Where a run is, and how a command of `launch` is typed there."""

    settings: Ssh
    environment: Provisioned

    @classmethod
    def of(cls, folder: Path, settings: Ssh, provisioned: Provisioned, words: ClusterRef) -> Self:
        """A run that is to have its copy in `folder`."""
        return cls(
            settings=settings,
            name=folder.name,
            runs=runs_below(str(provisioned.base), folder),
            environment=provisioned,
            words=words,
            launched_in=str(Path.cwd()),
        )

    @computed_field
    @property
    def head_name(self) -> str:
        return self.head.name

    @property
    def head(self) -> Host:
        return hosts_of(self.settings)[0]

    def launch(self, verb: str, *words: str, terminal: bool) -> int:
        """SSH_FAILED: the connection could not be had or was lost."""
        with self.start(verb, *words, terminal=terminal) as process:
            return process.wait()

    def start(self, verb: str, *words: str, terminal: bool) -> subprocess.Popen[bytes]:
        """See `launch`; does not wait for its end."""
        typed = self._command(verb, *words)
        return subprocess.Popen(self.head.words(typed, terminal=terminal))

    def is_over(self) -> bool:
        command = self._command("status", "-o", "json")
        (answer,) = everywhere([self.head], lambda _: self.head.run(command, ASK_TIMEOUT_S))
        status = parse_object(answer[answer.find("{") :]) or {}
        if not isinstance(status.get("alive"), bool):
            raise ProviderError(f"{self.head_name}: `launch status` there printed no status")
        return not status["alive"]

    def fetch(self, folder: Path) -> None:
        self.copy(folder)
        self.localize(folder)

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
    left_out = shlex.join(f"--exclude=./{name}" for name in NOT_FETCHED)
    return shell(f"cd {shlex.quote(folder)} && tar -czf - {left_out} .")


def _unpacking(folder: str) -> str:
    """For a host's shell: the other way round."""
    there = shlex.quote(folder)
    return shell(f"umask 077; mkdir -p {there} && cd {there} && tar -xzf -")
